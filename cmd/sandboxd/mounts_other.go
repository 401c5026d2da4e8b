//go:build !linux

package main

import "os"

func openMountSource(source string) (*os.File, error) { return os.Open(source) }
