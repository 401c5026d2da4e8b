package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// inodes makes files without content.
func inodes(args []string) (string, error) {
	n, _ := strconv.Atoi(args[1])
	for i := range n {
		fd, err := syscall.Open(args[0]+"/"+strconv.Itoa(i), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		if err != nil {
			return strconv.Itoa(i), err
		}
		syscall.Close(fd)
	}
	return strconv.Itoa(n), nil
}

func closeStdin([]string) (string, error) { return "", syscall.Close(0) }

// flood writes without end.
func flood(to string) {
	b := bytes.Repeat([]byte("x"), 1<<16) // no line ever ends
	f := os.Stdout
	if to == "err" {
		f = os.Stderr
	}
	for {
		if _, err := f.Write(b); err != nil {
			return
		}
	}
}
