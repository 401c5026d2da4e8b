package prove

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// The guest must be able to fail: where there is a network, it says so.
func TestTryReportsWhatItReaches(t *testing.T) {
	b, err := Lay(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var loopback []string
	for _, a := range b.targets {
		if a.Addr().IsLoopback() {
			loopback = append(loopback, a.String())
		}
	}
	var out bytes.Buffer
	err = Try(context.Background(), &out, loopback)
	if !errors.Is(err, ErrReached) || !strings.Contains(out.String(), "reached tcp 127.0.0.1:") {
		t.Fatalf("got %v and %q, want the bait reached", err, out.String())
	}
	if b.Reached() == 0 {
		t.Fatal("the bait did not notice")
	}
}

func TestModuleCarriesItsTarget(t *testing.T) {
	m, err := Module(netip.MustParseAddrPort("127.0.0.1:258"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(m, []byte{127, 0, 0, 1, 2, 1, 0, 0}) {
		t.Fatal("the target is not in the module")
	}
	if _, err := Module(netip.MustParseAddrPort("[::1]:1")); err == nil {
		t.Fatal("an IPv6 target was taken")
	}
}
