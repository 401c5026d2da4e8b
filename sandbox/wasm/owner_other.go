//go:build !unix

package wasm

import "io/fs"

// ownedByUs trusts the folder's own access rules where there are no user ids.
func ownedByUs(fs.FileInfo) bool { return true }
