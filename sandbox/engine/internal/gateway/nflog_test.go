//go:build linux

package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func ipv4(proto byte, dst string, frag uint16, rest ...byte) []byte {
	b := make([]byte, 20)
	b[0], b[9] = 0x45, proto
	binary.BigEndian.PutUint16(b[6:], frag)
	copy(b[16:], netip.MustParseAddr(dst).AsSlice())
	return append(b, rest...)
}

func ipv6(next byte, dst string, rest ...byte) []byte {
	b := make([]byte, 40)
	b[0], b[6] = 0x60, next
	copy(b[24:], netip.MustParseAddr(dst).AsSlice())
	return append(b, rest...)
}

var (
	port443 = []byte{0xab, 0xcd, 1, 187, 0, 0, 0, 0}
	hopopts = []byte{unix.IPPROTO_TCP, 0, 0, 0, 0, 0, 0, 0}
)

func TestParsePacket(t *testing.T) {
	options := append(ipv4(unix.IPPROTO_TCP, "192.0.2.1", 0), append(make([]byte, 4), port443...)...)
	options[0] = 0x46
	for name, tc := range map[string]struct {
		packet []byte
		want   string
	}{
		"tcp4":                 {ipv4(unix.IPPROTO_TCP, "192.0.2.1", 0, port443...), "tcp 192.0.2.1:443"},
		"udp4":                 {ipv4(unix.IPPROTO_UDP, "192.0.2.1", 0x4000, port443...), "udp 192.0.2.1:443"},
		"options":              {options, "tcp 192.0.2.1:443"},
		"a later fragment":     {ipv4(unix.IPPROTO_UDP, "192.0.2.1", 1, port443...), "udp 192.0.2.1:0"},
		"cut before the ports": {ipv4(unix.IPPROTO_TCP, "192.0.2.1", 0, 1, 2, 3), "tcp 192.0.2.1:0"},
		"icmp4":                {ipv4(unix.IPPROTO_ICMP, "192.0.2.1", 0, port443...), "icmp 192.0.2.1:0"},
		"gre":                  {ipv4(47, "192.0.2.1", 0, port443...), "ip 192.0.2.1:0"},
		"tcp6":                 {ipv6(unix.IPPROTO_TCP, "2001:db8::1", port443...), "tcp [2001:db8::1]:443"},
		"icmp6":                {ipv6(unix.IPPROTO_ICMPV6, "2001:db8::1", port443...), "icmp [2001:db8::1]:0"},
		"an extension header":  {ipv6(unix.IPPROTO_HOPOPTS, "2001:db8::1", append(bytes.Clone(hopopts), port443...)...), "tcp [2001:db8::1]:443"},
		"a cut extension":      {ipv6(unix.IPPROTO_HOPOPTS, "2001:db8::1", 6), "ip [2001:db8::1]:0"},
		"a later fragment of 6": {
			ipv6(unix.IPPROTO_FRAGMENT, "2001:db8::1", append([]byte{unix.IPPROTO_UDP, 0, 0, 8, 0, 0, 0, 0}, port443...)...),
			"udp [2001:db8::1]:0",
		},
		"no packet":       {nil, ""},
		"a short header":  {ipv4(6, "192.0.2.1", 0)[:19], ""},
		"a lying header":  {append([]byte{0x44}, make([]byte, 30)...), ""},
		"a short header6": {ipv6(6, "2001:db8::1")[:39], ""},
		"version 5":       {append([]byte{0x55}, make([]byte, 60)...), ""},
	} {
		got := ""
		if network, dst, ok := parsePacket(tc.packet); ok {
			got = network + " " + dst.String()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// nflog frames packets as the kernel does: a prefix attribute, the payload,
// padding, and a closing NLMSG_DONE.
func nflog(packets ...[]byte) []byte {
	var b []byte
	ne := binary.NativeEndian
	frame := func(kind uint16, body []byte) {
		b = ne.AppendUint32(b, uint32(nlHeader+len(body)))
		b = ne.AppendUint16(b, kind)
		b = append(b, make([]byte, 10)...)
		b = append(b, body...)
		b = append(b, make([]byte, align4(len(b))-len(b))...)
	}
	for _, p := range packets {
		body := []byte{unix.AF_INET, 0, 0, 7}
		body = append(ne.AppendUint16(ne.AppendUint16(body, 5), 10), 0, 0, 0, 0)
		body = ne.AppendUint16(ne.AppendUint16(body, uint16(attrHeader+len(p))), nfulaPayload)
		frame(nflogPacket, append(body, p...))
	}
	frame(unix.NLMSG_DONE, make([]byte, 4))
	return b
}

func TestParseNflog(t *testing.T) {
	var got []string
	report := func(network string, dst netip.AddrPort) { got = append(got, network+" "+dst.String()) }
	b := nflog(ipv4(unix.IPPROTO_TCP, "192.0.2.1", 0, 1, 2, 3), []byte{0xff}, ipv6(unix.IPPROTO_UDP, "2001:db8::1", port443...))
	parseNflog(b, report)
	if diff := cmp.Diff([]string{"tcp 192.0.2.1:0", "udp [2001:db8::1]:443"}, got); diff != "" {
		t.Error(diff)
	}
	got = nil
	for n := range len(b) {
		parseNflog(b[:n], report)
	}
}

// FuzzParseNflog: whatever the kernel copied from the guest, parsing ends, and
// every report is of a known network with an address.
func FuzzParseNflog(f *testing.F) {
	f.Add(nflog(ipv4(unix.IPPROTO_TCP, "192.0.2.1", 0, port443...), ipv6(unix.IPPROTO_HOPOPTS, "2001:db8::1", hopopts...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseNflog(b, func(network string, dst netip.AddrPort) {
			if !dst.Addr().IsValid() || network == "" || (network == "icmp" || network == "ip") && dst.Port() != 0 {
				t.Fatal(network, dst)
			}
		})
		if network, dst, ok := parsePacket(b); ok && !dst.Addr().IsValid() {
			t.Fatal(network, dst)
		}
	})
}
