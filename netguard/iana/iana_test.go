package iana

import (
	"bytes"
	"encoding/csv"
	"math/bits"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// rows reads one column pair of a CSV file of this folder.
func rows(t testing.TB, name, a, b string) [][2]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	ia, ib := -1, -1
	for i, h := range all[0] {
		if h == a {
			ia = i
		}
		if h == b {
			ib = i
		}
	}
	if ia < 0 || ib < 0 {
		t.Fatalf("%s lacks %q or %q", name, a, b)
	}
	var out [][2]string
	for _, r := range all[1:] {
		out = append(out, [2]string{r[ia], r[ib]})
	}
	return out
}

// classes reads classes.csv with netip only: the oracle of these tests.
func classes(t testing.TB) map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	for _, r := range rows(t, "classes.csv", "Address Block", "Class") {
		out[netip.MustParsePrefix(r[0])] = r[1]
	}
	return out
}

// slow classifies by comparing every prefix, as a reader of the registries
// would.
func slow(all map[netip.Prefix]string, a netip.Addr) string {
	best, class := -1, ""
	for p, c := range all {
		if contains(p, a) && p.Bits() > best {
			best, class = p.Bits(), c
		}
	}
	switch {
	case best >= 0:
		return class
	case a.Is4():
		return "v4.public"
	}
	return "v6.outside-2000-3"
}

// contains is Prefix.Contains that also sees IPv4-mapped addresses as IPv6.
func contains(p netip.Prefix, a netip.Addr) bool {
	if p.Addr().BitLen() != a.BitLen() {
		return false
	}
	pb, ab := p.Addr().AsSlice(), a.AsSlice()
	for i := range p.Bits() {
		if (pb[i/8]^ab[i/8])&(0x80>>(i%8)) != 0 {
			return false
		}
	}
	return true
}

func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// TestBoundaries checks the first and the last address of every block of both
// special-purpose registries, of the IPv6 address space and of classes.csv,
// and their neighbours on the outside.
func TestBoundaries(t *testing.T) {
	all := classes(t)
	var blocks []netip.Prefix
	for p := range all {
		blocks = append(blocks, p)
	}
	for _, f := range []struct{ name, col string }{
		{"iana-ipv4-special-registry-1.csv", "Address Block"},
		{"iana-ipv6-special-registry-1.csv", "Address Block"},
		{"ipv6-address-space-1.csv", "IPv6 Prefix"},
	} {
		for _, r := range rows(t, f.name, f.col, f.col) {
			for one := range strings.SplitSeq(r[0], ",") {
				blocks = append(blocks, netip.MustParsePrefix(strings.TrimSpace(one)))
			}
		}
	}
	n := 0
	for _, p := range blocks {
		end := last(p)
		for _, a := range []netip.Addr{p.Addr(), p.Addr().Next(), end, end.Prev(), p.Addr().Prev(), end.Next()} {
			if !a.IsValid() {
				continue // off the end of the space
			}
			n++
			got := Lookup(a)
			if got.String() != slow(all, a) {
				t.Errorf("%s (edge of %s): %s, want %s", a, p, got, slow(all, a))
			}
			if got.Public() != (got.String() == "v4.public" || got.String() == "v6.public") {
				t.Errorf("%s: %s public %v", a, got, got.Public())
			}
		}
	}
	if n < 400 {
		t.Errorf("only %d addresses checked", n)
	}
}

// TestRegistryRowsAreRefused holds that no address of a special-purpose row is
// ever public, whatever the registry says of its reach.
func TestRegistryRowsAreRefused(t *testing.T) {
	for _, f := range []string{"iana-ipv4-special-registry-1.csv", "iana-ipv6-special-registry-1.csv"} {
		for _, r := range rows(t, f, "Address Block", "Name") {
			for one := range strings.SplitSeq(r[0], ",") {
				p := netip.MustParsePrefix(strings.TrimSpace(one))
				for _, a := range []netip.Addr{p.Addr(), last(p)} {
					if c := Lookup(a); c.Public() || c == 0 {
						t.Errorf("%s (%s) is %q", a, r[1], c)
					}
				}
				if _, refused := Refused(p); !refused {
					t.Errorf("%s could be opened by a rule", p)
				}
			}
		}
	}
}

func TestLongestFirst(t *testing.T) {
	for i := 1; i < len(table4); i++ {
		if bits.OnesCount32(table4[i].mask) > bits.OnesCount32(table4[i-1].mask) {
			t.Fatalf("table4[%d] is longer than the one before", i)
		}
	}
	n := func(e entry6) int { return bits.OnesCount64(e.maskHi) + bits.OnesCount64(e.maskLo) }
	for i := 1; i < len(table6); i++ {
		if n(table6[i]) > n(table6[i-1]) {
			t.Fatalf("table6[%d] is longer than the one before", i)
		}
	}
}

func TestMetadata(t *testing.T) {
	list := rows(t, "metadata.csv", "Address", "Service")
	if len(list) != len(metadata) {
		t.Errorf("%d rows, %d in the table", len(list), len(metadata))
	}
	for _, r := range list {
		a := netip.MustParseAddr(r[0])
		if !Metadata(a) {
			t.Errorf("%s (%s) is not metadata", a, r[1])
		}
		if Lookup(a).Public() {
			t.Errorf("%s (%s) is public", a, r[1])
		}
	}
	if Metadata(netip.MustParseAddr("168.63.129.17")) || Metadata(netip.Addr{}) {
		t.Error("a neighbour is metadata")
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		prefix  string
		refused bool
	}{
		{"8.8.8.0/24", false},
		{"8.0.0.0/5", true},
		{"0.0.0.0/0", true},
		{"168.63.129.0/24", true},
		{"2606:4700::/32", false},
		{"2000::/3", true},
		{"::/0", true},
		{"4000::/3", true},
		{"2002::/16", true},
		{"64:ff9b::808:808/128", true},
	} {
		if block, got := Refused(netip.MustParsePrefix(tt.prefix)); got != tt.refused {
			t.Errorf("Refused(%s) = %q, %v", tt.prefix, block, got)
		}
	}
}

func TestZonesAndNothingAreUnknown(t *testing.T) {
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("2606:4700::1%eth0"), netip.MustParseAddr("::1%lo")} {
		if c := Lookup(a); c != 0 || c.Public() || c.Local() || c.String() != "" {
			t.Errorf("Lookup(%q) = %q", a, c)
		}
	}
}

// TestGenerated holds that table.go is what the generator makes of the data,
// and that a registry row without a class stops it.
func TestGenerated(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "table.go")
	gen := filepath.Join(dir, "gen")
	if msg, err := exec.Command("go", "build", "-o", gen, "./gen").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	if msg, err := exec.Command(gen, "-dir", ".", "-out", out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("table.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("table.go is not up to date: run go generate")
	}

	names, err := filepath.Glob("*.csv")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		if n == "iana-ipv4-special-registry-1.csv" {
			// As IANA marks its footnotes.
			marked := bytes.Replace(data, []byte("\n192.0.0.0/24,"), []byte("\n192.0.0.0/24 [2],"), 1)
			if bytes.Equal(marked, data) {
				t.Error("no row to mark")
			}
			data = append(marked, "203.0.114.0/24,New,[RFC9999],2030-01,N/A,True,True,True,True,False\n"...)
		}
		if err := os.WriteFile(filepath.Join(dir, n), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if msg, err := exec.Command(gen, "-dir", dir, "-out", out).CombinedOutput(); err == nil || !bytes.Contains(msg, []byte("203.0.114.0/24")) {
		t.Errorf("a row without a class: %v, %s", err, msg)
	}
}

// FuzzLookup compares the table with the oracle on any address.
func FuzzLookup(f *testing.F) {
	all := classes(f)
	f.Add([]byte{127, 0, 0, 1})
	f.Add(netip.MustParseAddr("2001:470:1f0b::5efe:a00:1").AsSlice())
	f.Add(netip.MustParseAddr("64:ff9b::808:808").AsSlice())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		got, want := Lookup(a).String(), slow(all, a)
		if got == "v6.isatap" && want == "v6.public" {
			s := a.AsSlice()
			if s[8]&^3 == 0 && s[9] == 0 && s[10] == 0x5e && s[11] == 0xfe {
				return
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	for _, s := range []string{"8.8.8.8", "10.0.0.1", "2606:4700:4700::1111", "fe80::1"} {
		a := netip.MustParseAddr(s)
		b.Run(s, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Lookup(a)
			}
		})
	}
}
