//go:build linux

package engine

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// samples has one message of each kind, with every field set.
func samples() []message {
	openings := []container.Opening{
		{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Ports: []uint16{443, 80}, TTL: time.Minute},
		{Prefix: netip.MustParsePrefix("2001:db8::1/128"), TTL: 0},
	}
	return []message{
		&helloMsg{Version: 3}, &hasMsg{Digest: "sha256:x"}, &importMsg{Digest: "d"},
		&startMsg{
			Spec: sandbox.Spec{
				Tenant: "t", Name: "n", Isolation: sandbox.GVisor, Image: sandbox.Image{Digest: "d"},
				Args: []string{"a", "", "\xff"}, Env: []string{"K=V"}, Dir: "/w",
				Mounts: []sandbox.Mount{{Target: "/m", ReadWrite: true}},
				Limits: sandbox.Limits{MemoryBytes: 1, CPUs: 0.125, PIDs: 2, Files: 3, TmpBytes: 4, FileBytes: 7, Wall: 5, StopGrace: 6},
			},
			Gateway: true, Open: openings,
		},
		&openMsg{Target: 9, Open: openings}, &stopMsg{Target: 8, Kill: true}, &listMsg{After: "a"},
		&welcomeMsg{Version: 1, Engine: "e", Tiers: []sandbox.Isolation{sandbox.Container}},
		&missingMsg{Digests: []string{"a", "b"}}, &lackingMsg{Digests: []string{"b"}},
		&answerMsg{Yes: true}, &pipeMsg{}, &doneMsg{}, &startedMsg{ID: "i", Present: 7},
		&exitedMsg{Exit: sandbox.Exit{Cause: sandbox.OOM, Code: 137, Signal: 9, Detail: "d", PeakMemoryBytes: 1, PeakPIDs: 2}},
		&listedMsg{Entries: []Entry{{ID: "i", Tenant: "t", Name: "n", Isolation: sandbox.Container, Owner: 7, Age: 3}}, More: true},
		&errorMsg{Code: codeQuota, Tier: sandbox.Kata, Text: "t", Next: "n"},
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	for _, m := range samples() {
		b := marshal(42, m)
		id, got, err := unmarshal(b)
		if err != nil || id != 42 {
			t.Errorf("%s: id %d, %v", m.kind(), id, err)
			continue
		}
		if diff := cmp.Diff(m, got, cmpopts.IgnoreFields(sandbox.Mount{}, "Source"), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", m.kind(), diff)
		}
		for n := range len(b) {
			if _, _, err := unmarshal(b[:n]); !errors.Is(err, errMalformed) {
				t.Errorf("%s cut to %d bytes: %v", m.kind(), n, err)
			}
		}
		if _, _, err := unmarshal(append(b, 0)); !errors.Is(err, errMalformed) {
			t.Errorf("%s with a byte more: %v", m.kind(), err)
		}
	}
}

func TestDecoderRefuses(t *testing.T) {
	flag := marshal(1, &answerMsg{})
	flag[5] = 2
	huge := marshal(1, &hasMsg{})
	copy(huge[5:], "\xff\xff\xff\xff")
	prefix := marshal(1, &openMsg{Open: []container.Opening{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}})
	prefix[5+4+2+4+4] = 33
	many := &startMsg{Spec: sandbox.Spec{Args: make([]string, maxArgs+1)}}
	for name, b := range map[string][]byte{
		"empty": nil, "kind 0": {0, 0, 0, 0, 1}, "kind 200": {200, 0, 0, 0, 1},
		"a flag of two": flag, "a length beyond the message": huge, "33 bits of IPv4": prefix,
		"too many arguments": marshal(1, many),
		"too many digests":   marshal(1, &missingMsg{Digests: make([]string, maxDigests+1)}),
		"a long digest":      marshal(1, &lackingMsg{Digests: []string{strings.Repeat("x", maxName+1)}}),
		"a long name":        marshal(1, &startMsg{Spec: sandbox.Spec{Name: strings.Repeat("x", maxName+1)}}),
		"a negative limit":   marshal(1, &startMsg{Spec: sandbox.Spec{Limits: sandbox.Limits{CPUs: -1}}}),
	} {
		if _, _, err := unmarshal(b); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzUnmarshal: no message breaks the decoder, and what it takes has exactly
// one encoding, so no two sides can read a message differently.
func FuzzUnmarshal(f *testing.F) {
	for _, m := range samples() {
		f.Add(marshal(7, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id, m, err := unmarshal(b)
		if err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatal(err)
			}
			return
		}
		if again := marshal(id, m); string(again) != string(b) {
			t.Fatalf("%s: %x was read and written as %x", m.kind(), b, again)
		}
		if m, ok := m.(*startMsg); ok {
			p := &peer{srv: &Server{cfg: Config{Tiers: []sandbox.Isolation{sandbox.Container}}}}
			m.Spec.Mounts = nil
			_, _ = p.request(m, nil)
		}
	})
}
