// Package doctor says which isolation this host really gives: it tries each
// thing that a tier needs, in namespaces and folders of its own that are gone
// afterwards, and asks for a proof by a real sandbox where it is handed one.
//
// It changes nothing on the host, and it may never send a packet out of a
// namespace that it made, or call a thing good because it could not try it.
package doctor
