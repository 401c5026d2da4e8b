// Package oauthtest is an authorization server and a protected resource for
// tests. It is strict where clients are sloppy, and can be told to be hostile.
//
// It may never be part of a program.
package oauthtest
