//go:build !linux

package wasip1

import "os"

const openNoWait = 0

// reopenPath has to trust the path here: only Linux can reopen a descriptor.
func reopenPath(f *os.File) string { return f.Name() }

func duplicate(f *os.File) (*os.File, error) { return os.Open(f.Name()) }
