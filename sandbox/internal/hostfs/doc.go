// Package hostfs says what of the host's file systems may be shown to a guest,
// for every tier alike. It looks at descriptors and never opens a path.
package hostfs
