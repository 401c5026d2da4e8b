package netguard

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func addrs(ss ...string) (out []netip.Addr) {
	for _, s := range ss {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

var cmpAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func TestPinsExpireOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pins pinTable
		pins.add("a.example", addrs("8.8.8.8", "8.8.4.4"), time.Minute)
		time.Sleep(30 * time.Second)
		pins.add("a.example", addrs("9.9.9.9", "8.8.4.4"), time.Minute)
		pins.add("b.example", addrs("9.9.9.9"), time.Hour)

		if d := cmp.Diff(addrs("9.9.9.9", "8.8.4.4", "8.8.8.8"), pins.lookup("a.example"), cmpAddr); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"a.example", "b.example"}, pins.namesOf(netip.MustParseAddr("9.9.9.9"))); d != "" {
			t.Error(d)
		}
		time.Sleep(30 * time.Second)
		if d := cmp.Diff(addrs("9.9.9.9", "8.8.4.4"), pins.lookup("a.example"), cmpAddr); d != "" {
			t.Error("the first answer outlived its time", d)
		}
		time.Sleep(30 * time.Second)
		if got := pins.lookup("a.example"); got != nil {
			t.Error("all of a should be gone", got)
		}
		if d := cmp.Diff([]string{"b.example"}, pins.namesOf(netip.MustParseAddr("9.9.9.9"))); d != "" {
			t.Error(d)
		}
		if got := pins.namesOf(netip.MustParseAddr("1.1.1.1")); got != nil {
			t.Error(got)
		}
	})
}

func TestPinsAreBounded(t *testing.T) {
	var pins pinTable
	for i := range 3 * maxPinnedAddrs {
		pins.add("rotating.example", []netip.Addr{netip.AddrFrom4([4]byte{9, 9, 9, byte(i)})}, time.Hour)
	}
	if got := len(pins.lookup("rotating.example")); got != maxPinnedAddrs {
		t.Errorf("%d addresses of one name", got)
	}
	for i := range maxPinnedNames + 10 {
		pins.add(fmt.Sprintf("n%d.example", i), addrs("8.8.8.8"), time.Duration(i+7200)*time.Second)
	}
	if len(pins.names) != maxPinnedNames || len(pins.namesOf(netip.MustParseAddr("8.8.8.8"))) > maxPinnedNames {
		t.Errorf("%d names", len(pins.names))
	}
	if pins.lookup("rotating.example") != nil || pins.lookup("n0.example") != nil {
		t.Error("what expires first should have gone first")
	}
	for a, names := range pins.addrs {
		for n := range names {
			if pins.names[n] == nil {
				t.Fatalf("%v points at %q, which is gone", a, n)
			}
		}
	}
}
