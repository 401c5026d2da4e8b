//go:build linux

package engine

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// BenchmarkPin measures what the gateway's message adds to a look-up, the
// rules' own time apart.
func BenchmarkPin(b *testing.B) {
	socket := filepath.Join(b.TempDir(), "engine.sock")
	s, err := NewServer(testConfig(socket))
	if err != nil {
		b.Fatal(err)
	}
	h := newLocalHost()
	image := sandbox.Image{Digest: "sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
	h.images[image.Digest] = true
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.Background(), h) }()
	defer func() { _ = s.Close(context.Background()); <-ended }()
	var c *Client
	for c == nil {
		c, _ = Dial(b.Context(), ClientConfig{Socket: socket})
	}
	defer func() { _ = c.Close(context.Background()) }()
	sb, err := c.Start(b.Context(), testSpec(image, "/bin/cat"), &tableEgress{})
	if err != nil {
		b.Fatal(err)
	}
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:443")}
	b.ResetTimer()
	for b.Loop() {
		if err := sb.(*remote).pin(b.Context(), endpoints, time.Minute); err != nil {
			b.Fatal(err)
		}
	}
}
