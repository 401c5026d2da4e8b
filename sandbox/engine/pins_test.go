//go:build linux

package engine

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

func TestPinsBecomeOpenings(t *testing.T) {
	ap := netip.MustParseAddrPort
	prefix := netip.MustParsePrefix
	got, err := pinOpenings([]netip.AddrPort{
		ap("93.184.215.14:443"), ap("93.184.215.14:80"), ap("[2606:2800::1]:443"),
		ap("8.8.8.8:0"), ap("[::ffff:9.9.9.9]:53"),
	}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	want := []container.Opening{
		{Prefix: prefix("93.184.215.14/32"), Ports: []uint16{443, 80}, TTL: time.Minute},
		{Prefix: prefix("2606:2800::1/128"), Ports: []uint16{443}, TTL: time.Minute},
		{Prefix: prefix("8.8.8.8/32"), TTL: time.Minute}, // port 0 stands for every port
		{Prefix: prefix("9.9.9.9/32"), Ports: []uint16{53}, TTL: time.Minute},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
		t.Error(d)
	}
	for _, bad := range []struct {
		at  netip.AddrPort
		ttl time.Duration
	}{{ap("8.8.8.8:53"), 0}, {ap("[fe80::1%eth0]:53"), time.Minute}, {netip.AddrPort{}, time.Minute}} {
		if _, err := pinOpenings([]netip.AddrPort{bad.at}, bad.ttl); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%v for %s: %v, want it refused", bad.at, bad.ttl, err)
		}
	}
}
