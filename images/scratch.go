package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Scratch seals an image that holds one static program and nothing else: no
// C library, no shell. name is its title, program a file of this host, args
// its fixed arguments. The layout is written into dir, which must be empty and
// belongs to the caller.
func Scratch(dir, name, program string, args ...string) (Image, error) {
	blobs := filepath.Join(dir, v1.ImageBlobsDir, "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return Image{}, err
	}
	layer, err := scratchLayer(dir, program)
	if err != nil {
		return Image{}, fmt.Errorf("sealing %s: %w", quoted(program), err)
	}
	entry := append([]string{"/app/program"}, args...)
	config, err := imageConfig([]blob{layer}, entry, nil, imageEnv(), userHome)
	if err != nil {
		return Image{}, err
	}
	configBlob, err := writeBlob(blobs, config)
	if err != nil {
		return Image{}, err
	}
	manifest, err := imageManifest(configBlob, []blob{layer}, name, "0")
	if err != nil {
		return Image{}, err
	}
	manifestBlob, err := writeBlob(blobs, manifest)
	if err != nil {
		return Image{}, err
	}
	index, err := json.Marshal(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{descriptor(v1.MediaTypeImageManifest, manifestBlob)},
	})
	if err != nil {
		return Image{}, err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, v1.ImageIndexFile), index, 0o600),
		os.WriteFile(filepath.Join(dir, v1.ImageLayoutFile), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o600),
	)
	return Image{
		Digest: manifestBlob.Digest, Path: dir, Entrypoint: entry, Env: imageEnv(), Dir: userHome,
		Size: layer.Size + configBlob.Size + manifestBlob.Size,
	}, err
}

// scratchLayer packs the program with the user that it runs as.
func scratchLayer(dir, program string) (blob, error) {
	f, err := os.Open(program)
	if err != nil {
		return blob{}, err
	}
	defer f.Close() //nolint:errcheck // read only
	fi, err := f.Stat()
	if err != nil {
		return blob{}, err
	}
	file := filepath.Join(dir, "layer")
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	passwd := fmt.Sprintf("%s:x:%d:%d::%s:/usr/sbin/nologin\n", userName, userID, userID, userHome)
	err = errors.Join(
		l.dir("app", 0o555, 0), l.dir("dev", 0o755, 0), l.dir("etc", 0o755, 0), l.dir("home", 0o755, 0),
		l.dir(userHome[1:], 0o700, userID), l.dir("proc", 0o555, 0), l.dir("tmp", 0o1777, 0),
		l.regular("etc/passwd", 0o644, int64(len(passwd)), strings.NewReader(passwd)),
		l.regular("etc/resolv.conf", 0o644, 0, strings.NewReader("")),
		l.regular("app/program", 0o555, fi.Size(), f),
	)
	if err != nil {
		l.abandon()
		return blob{}, err
	}
	b, err := l.finish()
	if err != nil {
		return blob{}, err
	}
	return b, os.Rename(file, filepath.Join(dir, v1.ImageBlobsDir, "sha256", strings.TrimPrefix(b.Digest, "sha256:")))
}

// writeBlob writes data under its digest.
func writeBlob(blobs string, data []byte) (blob, error) {
	h := newHashWriter(io.Discard)
	_, _ = h.Write(data) // neither part can fail
	b := h.blob()
	return b, os.WriteFile(filepath.Join(blobs, strings.TrimPrefix(b.Digest, "sha256:")), data, 0o600)
}
