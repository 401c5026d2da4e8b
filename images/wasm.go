package images

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const maxModule = 512 << 20

// WASM reads a WebAssembly module from a file and addresses it by its content.
// The file stays where it is: whoever runs it checks the digest of what it
// loads. A component, or anything that is no module, is refused.
func WASM(path string) (Image, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Image{}, err
	}
	f, err := os.Open(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fail(ErrNotFound, "no such file: "+quoted(path), "give the path of a .wasm module")
	}
	if err != nil {
		return Image{}, err
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		return Image{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxModule {
		return Image{}, fail(ErrRefused, quoted(path)+" is not a file of at most 512 MiB", "")
	}
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil || string(head[:4]) != "\x00asm" {
		return Image{}, fail(ErrRefused, quoted(path)+" is not a WebAssembly module", "build it for wasip1, as in GOOS=wasip1 GOARCH=wasm go build")
	}
	if string(head[4:]) != "\x01\x00\x00\x00" {
		return Image{}, fail(ErrRefused, quoted(path)+" is a WebAssembly component or of an unknown version", "build a module for wasip1")
	}
	h := newHashWriter(io.Discard)
	if _, err := h.Write(head[:]); err != nil {
		return Image{}, err
	}
	if _, err := io.Copy(h, f); err != nil {
		return Image{}, err
	}
	b := h.blob()
	return Image{
		Ref: Ref{Kind: KindWASM, Name: path}, Digest: b.Digest, Path: abs, Size: b.Size,
		Entrypoint: []string{strings.TrimSuffix(filepath.Base(abs), ".wasm")},
	}, nil
}
