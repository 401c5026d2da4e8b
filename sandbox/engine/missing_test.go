//go:build linux

package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// twoImages gives two images of one layout that share their layer and differ
// in their manifest.
func twoImages(t *testing.T) (first, second sandbox.Image) {
	t.Helper()
	first = layout(t, "shared")
	dir := filepath.Join(first.Path, "blobs", "sha256")
	raw, err := os.ReadFile(filepath.Join(dir, strings.TrimPrefix(first.Digest, "sha256:")))
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, '\n')
	sum := sha256.Sum256(raw)
	name := hex.EncodeToString(sum[:])
	if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return first, sandbox.Image{Digest: "sha256:" + name, Path: first.Path}
}

func handOver(t *testing.T, c *Client, image sandbox.Image) error {
	t.Helper()
	sb, err := c.Start(t.Context(), testSpec(image, "/bin/true"), nil)
	if err == nil {
		err = sb.Close(t.Context())
	}
	return err
}

// take returns what the host has got since the last time.
func (h *localHost) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.received
	h.received = nil
	return got
}

func TestOnlyWhatTheEngineLacksIsSent(t *testing.T) {
	e := startEngine(t, nil)
	var totals []int64
	c, err := Dial(t.Context(), ClientConfig{Socket: e.socket, Progress: func(_ string, _, total int64) { totals = append(totals, total) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	first, second := twoImages(t)
	if err := handOver(t, c, first); err != nil {
		t.Fatal(err)
	}
	if got := e.host.take(); len(got) != 3 {
		t.Errorf("of the first image came %q", got)
	}
	totals = nil
	if err := handOver(t, c, second); err != nil {
		t.Fatal(err)
	}
	if got := e.host.take(); !slices.Equal(got, []string{second.Digest}) {
		t.Errorf("of the second image came %q, want its manifest alone", got)
	}
	if len(totals) == 0 || slices.Max(totals) > 4096 {
		t.Errorf("progress spoke of %d bytes", totals)
	}
}

// TestLostPartsAreSentAfterAll: what the engine had when it was asked may be
// gone when the archive comes.
func TestLostPartsAreSentAfterAll(t *testing.T) {
	e := startEngine(t, nil)
	c := dialTest(t, e)
	first, second := twoImages(t)
	if err := handOver(t, c, first); err != nil {
		t.Fatal(err)
	}
	e.host.take()
	e.host.mu.Lock()
	e.host.forget = true
	e.host.mu.Unlock()
	if err := handOver(t, c, second); err != nil {
		t.Fatal(err)
	}
	if got := e.host.take(); len(got) != 4 {
		t.Errorf("came %q, want the manifest, then everything", got)
	}
}

func TestMissingIsBounded(t *testing.T) {
	e := startEngine(t, nil)
	p := dialRaw(t, e, true)
	for id, bad := range []string{"", "latest", "sha256:../../x", "sha512:" + strings.Repeat("0", 64)} {
		p.must(uint32(id)+2, &missingMsg{Digests: []string{bad}})
		_, m, _, err := p.recv()
		if err != nil {
			t.Fatal(err)
		}
		if refusal, ok := m.(*errorMsg); !ok || !errors.Is(refusal.toError(), sandbox.ErrInvalid) {
			t.Errorf("%q: answered %+v", bad, m)
		}
	}
	all := make([]string, maxDigests)
	for i := range all {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		all[i] = "sha256:" + hex.EncodeToString(sum[:])
	}
	p.must(9, &missingMsg{Digests: all})
	_, m, _, err := p.recv()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := m.(*lackingMsg); !ok || !slices.Equal(got.Digests, all) {
		t.Errorf("answered %+v", m)
	}
	p.must(10, &missingMsg{Digests: append(all, all[0])})
	p.expectEnd()
}
