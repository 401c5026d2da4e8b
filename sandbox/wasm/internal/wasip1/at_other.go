//go:build !unix

package wasip1

import "os"

func renameIn(root *os.Root, from, to string) error { return root.Rename(from, to) }

func setLinkTimes(*os.Root, string, int64, int64) error { return ENOTSUP }
