package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tcpOnly is a policy that opens raw bytes on one name, for tests that are
// not about protocols.
func tcpOnly(more ...Rule) Config {
	return Config{Mode: ModeAllowlist, Allow: append([]Rule{allowHost("db.example.com", ProtocolTCP, "5432")}, more...)}
}

func wantDenied(t *testing.T, err error, reason Reason) {
	t.Helper()
	var denied *DeniedError
	if !errors.As(err, &denied) || denied.Reason != reason {
		t.Errorf("%v; want %s", err, reason)
	}
}

func TestDialRecordsDecisionAndClose(t *testing.T) {
	l := newLab(t, tcpOnly())
	l.egress.subject.InFlight = func() []string { return []string{"fetch"} }
	l.names.set("db.example.com", time.Minute, "8.8.8.8")
	l.serve("8.8.8.8:5432", echo)
	c, err := l.egress.DialContext(t.Context(), "tcp", "DB.example.com.:5432")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	d := l.lastDecision()
	want := Record{
		ID: d.ID, Event: EventDecision, Time: d.Time, Tenant: "t", Sandbox: "s", InFlight: []string{"fetch"}, Via: ViaDial,
		Network: "tcp", Host: "db.example.com", Port: 5432, Class: "v4.public", Rule: "allow[0] host db.example.com", Allow: true,
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
	r := l.closeRecord(d.ID)
	want.Event, want.Time, want.Up, want.Down, want.Duration = EventClose, r.Time, 5, 5, r.Duration
	if diff := cmp.Diff(want, r); diff != "" || r.Duration <= 0 {
		t.Errorf("close (-want +got):\n%s", diff)
	}
}

// TestDenialsCarryNoAddress holds that neither a refusal nor a failed dial
// tells the sandbox what a name resolved to.
func TestDenialsCarryNoAddress(t *testing.T) {
	l := newLab(t, Config{Mode: ModePublic, Deny: []Rule{{CIDR: "9.9.9.0/24"}}})
	for name, ip := range map[string]string{"a.example.com": "10.1.2.3", "b.example.com": "9.9.9.9", "c.example.com": "8.8.4.4"} {
		l.names.set(name, 0, ip)
		_, err := l.egress.DialContext(t.Context(), "tcp", name+":443")
		if err == nil || strings.Contains(err.Error(), ip) {
			t.Errorf("%s: %v", name, err)
		}
		var denied *DeniedError
		if errors.As(err, &denied) && denied.Addr.String() != ip {
			t.Errorf("%s: the error's own field says %v", name, denied.Addr)
		}
	}
}

func TestDialTriesVettedAddressesInOrder(t *testing.T) {
	l := newLab(t, tcpOnly())
	l.names.set("db.example.com", 0, "2606:4700::1", "8.8.8.8", "::ffff:8.8.4.4")
	l.serve("8.8.4.4:5432", echo)
	c, err := l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []netip.AddrPort{netip.MustParseAddrPort("[2606:4700::1]:5432"), netip.MustParseAddrPort("8.8.8.8:5432"), netip.MustParseAddrPort("8.8.4.4:5432")}
	if d := cmp.Diff(want, l.dialled, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("dialled (-want +got):\n%s", d)
	}
	if n := len(l.names.asked); n != 1 {
		t.Errorf("%d look-ups", n)
	}
}

// TestDialSlowAddressDoesNotHoldTheNext holds that an address that never
// answers costs a head start and no more, and that its dial has ended.
func TestDialSlowAddressDoesNotHoldTheNext(t *testing.T) {
	l := newLab(t, tcpOnly())
	l.names.set("db.example.com", 0, "8.8.8.8", "8.8.4.4")
	l.serve("8.8.4.4:5432", echo)
	stopped := make(chan struct{})
	inner := l.guard.dial
	l.guard.dial = func(ctx context.Context, network string, addr netip.AddrPort, control Control) (net.Conn, error) {
		if addr.Addr() == netip.MustParseAddr("8.8.8.8") {
			<-ctx.Done()
			close(stopped)
			return nil, ctx.Err()
		}
		return inner(ctx, network, addr, control)
	}
	began := time.Now()
	c, err := l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if took := time.Since(began); took < fallbackDelay || took > 10*fallbackDelay {
		t.Errorf("took %v", took)
	}
	select {
	case <-stopped:
	default:
		t.Error("the slow dial is still under way")
	}
}

// TestControlRefusesAnotherAddress holds that the check on the socket is the
// last word: whatever a dialer resolves, only the vetted address connects.
func TestControlRefusesAnotherAddress(t *testing.T) {
	for _, address := range []string{"127.0.0.1:5432", "8.8.8.8:22", "8.8.8.9:5432", "[::ffff:127.0.0.1]:5432", "db.example.com:5432", ""} {
		l := newLab(t, tcpOnly())
		l.names.set("db.example.com", 0, "8.8.8.8")
		var seen error
		l.guard.dial = func(ctx context.Context, network string, _ netip.AddrPort, control Control) (net.Conn, error) {
			seen = control(ctx, network, address, nil)
			return nil, seen
		}
		_, err := l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432")
		wantDenied(t, seen, ReasonAddress)
		wantDenied(t, err, ReasonAddress)
	}
	l := newLab(t, tcpOnly())
	l.names.set("db.example.com", 0, "8.8.8.8")
	l.guard.dial = func(ctx context.Context, network string, _ netip.AddrPort, control Control) (net.Conn, error) {
		if err := control(ctx, network, "8.8.8.8:5432", nil); err != nil {
			t.Errorf("the vetted address: %v", err)
		}
		return nil, syscall.ECONNREFUSED
	}
	if _, err := l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v; want the kernel's own error", err)
	}
}

func TestDialFamilies(t *testing.T) {
	l := newLab(t, tcpOnly())
	l.names.set("db.example.com", 0, "2606:4700::1", "8.8.8.8")
	l.serve("8.8.8.8:5432", echo)
	c, err := l.egress.DialContext(t.Context(), "tcp4", "db.example.com:5432")
	if err != nil || len(l.dialled) != 1 {
		t.Fatalf("%v, dialled %v", err, l.dialled)
	}
	_ = c.Close()
	for _, network := range []string{"udp", "unix", "ip", ""} {
		_, err := l.egress.DialContext(t.Context(), network, "db.example.com:5432")
		wantDenied(t, err, ReasonNetwork)
	}
}

func TestLimits(t *testing.T) {
	cfg := tcpOnly(Rule{Host: "*.example.org"})
	cfg.Limits = Limits{Connections: 2, PerSecond: 4, BytesUp: 10, BytesDown: 1000, NamesPerWildcard: 2}
	l := newLab(t, cfg)
	l.names.set("db.example.com", 0, "8.8.8.8")
	l.serve("8.8.8.8:5432", echo)
	dial := func() (net.Conn, error) { return l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432") }
	a, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	b, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	_, err = dial()
	wantDenied(t, err, ReasonConnections)
	_ = b.Close()
	if b, err = dial(); err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	if b, err = dial(); err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	_, err = dial()
	wantDenied(t, err, ReasonRate)

	if _, err := a.Write(make([]byte, 10)); err != nil {
		t.Errorf("within the budget: %v", err)
	}
	if _, err := a.Write([]byte{1}); !errors.Is(err, errBudget) {
		t.Errorf("over the budget: %v", err)
	}
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("the connection goes on")
	}

	names := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "*.example.org"}}, Limits: Limits{NamesPerWildcard: 2}})
	for i, name := range []string{"a.example.org", "b.example.org", "a.example.org", "c.example.org"} {
		_, err := names.egress.DialContext(t.Context(), "tcp", name+":443")
		if want := []Reason{ReasonResolve, ReasonResolve, ReasonResolve, ReasonNames}[i]; !errors.Is(err, &DeniedError{Reason: want}) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
	if d := cmp.Diff([]string{"a.example.org", "b.example.org", "a.example.org"}, names.names.asked); d != "" {
		t.Errorf("asked upstream (-want +got):\n%s", d)
	}
}

// TestSetPolicy holds that a reload applies to new connections at once, ends
// those that the new policy forbids and leaves the others alone.
func TestSetPolicy(t *testing.T) {
	l := newLab(t, tcpOnly(allowHost("mq.example.com", ProtocolTCP, "5672"), allowHost("mv.example.com", ProtocolTCP, "1")))
	l.names.set("db.example.com", 0, "8.8.8.8")
	l.names.set("mq.example.com", 0, "8.8.4.4")
	l.names.set("mv.example.com", 0, "1.1.1.1")
	l.serve("8.8.8.8:5432", echo)
	l.serve("8.8.4.4:5672", echo)
	l.serve("1.1.1.1:1", echo)
	conns := map[string]net.Conn{}
	for _, at := range []string{"db.example.com:5432", "mq.example.com:5672", "mv.example.com:1"} {
		c, err := l.egress.DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[at] = c
	}
	next, err := Compile(Config{
		Mode: ModeAllowlist,
		Allow: []Rule{
			allowHost("db.example.com", ProtocolTCP, "5432"),
			{Host: "mv.example.com", Ports: []Port{"1"}, Protocol: ProtocolTCP, ResolveWithin: []string{"9.9.9.0/24"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.egress.SetPolicy(next)
	for at, alive := range map[string]bool{"db.example.com:5432": true, "mq.example.com:5672": false, "mv.example.com:1": false} {
		_, err := io.WriteString(conns[at], "x")
		if err == nil {
			_, err = io.ReadFull(conns[at], make([]byte, 1))
		}
		if (err == nil) != alive {
			t.Errorf("%s: %v", at, err)
		}
	}
	_, err = l.egress.DialContext(t.Context(), "tcp", "mq.example.com:5672")
	wantDenied(t, err, ReasonNotAllowed)
	l.egress.SetPolicy(nil)
	if _, err := conns["db.example.com:5432"].Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives its policy")
	}
	_, err = l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432")
	wantDenied(t, err, ReasonNoPolicy)
}

// TestPolicyChangesDuringDial holds that a connection whose dial was under way
// when the policy changed is not handed out against the new one.
func TestPolicyChangesDuringDial(t *testing.T) {
	l := newLab(t, tcpOnly(Rule{Host: "api.example.com"}))
	l.names.set("db.example.com", 0, "8.8.8.8")
	l.names.set("api.example.com", 0, "8.8.8.8")
	l.serve("8.8.8.8:5432", echo)
	l.serve("8.8.8.8:443", echo)
	inner := l.guard.dial
	l.guard.dial = func(ctx context.Context, network string, addr netip.AddrPort, control Control) (net.Conn, error) {
		c, err := inner(ctx, network, addr, control)
		l.egress.SetPolicy(nil)
		return c, err
	}
	old := l.egress.Policy()
	for _, at := range []string{"db.example.com:5432", "api.example.com:443"} {
		l.egress.SetPolicy(old)
		_, err := l.egress.DialContext(t.Context(), "tcp", at)
		wantDenied(t, err, ReasonClosed)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	l := newLab(t, tcpOnly())
	l.names.set("db.example.com", 0, "8.8.8.8")
	l.serve("8.8.8.8:5432", echo)
	c, err := l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432")
	if err != nil {
		t.Fatal(err)
	}
	inDial := make(chan struct{})
	l.guard.dial = func(ctx context.Context, _ string, _ netip.AddrPort, _ Control) (net.Conn, error) {
		close(inDial)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	result := make(chan error)
	go func() {
		_, err := l.egress.DialContext(context.Background(), "tcp", "db.example.com:5432")
		result <- err
	}()
	<-inDial
	_ = l.egress.Close()
	_ = l.egress.Close()
	if err := <-result; err == nil {
		t.Error("a dial outlives Close")
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives Close")
	}
	_, err = l.egress.DialContext(t.Context(), "tcp", "db.example.com:5432")
	wantDenied(t, err, ReasonClosed)
}

// TestTrustedRanges holds that an operator's ranges help only the registry
// they are for, and never reach metadata.
func TestTrustedRanges(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "npm.example.com"}}})
	trusting, err := New(Options{
		Resolver: &l.names, Dial: l.dial,
		Trusted: map[string][]netip.Prefix{"npm": {netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("169.254.0.0/16")}},
		Refused: []netip.Prefix{netip.MustParsePrefix("8.8.0.0/16")},
	})
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Name: "npm.example.com", Port: 443}
	for _, tt := range []struct {
		registry, ip string
		want         Reason
	}{
		{"npm", "10.9.1.1", ""},
		{"npm", "10.8.1.1", ReasonAddress},
		{"pypi", "10.9.1.1", ReasonAddress},
		{"", "10.9.1.1", ReasonAddress},
		{"npm", "169.254.169.254", ReasonAddress},
		{"npm", "8.8.8.8", ReasonAddress},
		{"npm", "9.9.9.9", ""},
	} {
		p := l.egress.Policy()
		m := trusting.vet(p, tt.registry, trusting.judge(p, tt.registry, target), target, addrs(tt.ip))
		if m.Reason != tt.want || m.Allow != (tt.want == "") {
			t.Errorf("%q to %s: %+v; want %q", tt.registry, tt.ip, m.Verdict, tt.want)
		}
	}
	if _, err := New(Options{Resolver: &l.names, Refused: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}}); err == nil {
		t.Error("a range with bits below its length is taken")
	}
}

func TestMostAnswersAndChains(t *testing.T) {
	l := newLab(t, Config{Mode: ModePublic})
	many := make([]string, MaxAnswers+1)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{8, 8, 8, byte(i + 1)}).String()
	}
	for name, tt := range map[string]struct {
		ips   []string
		chain int
		want  Reason
	}{
		"many.example.com":  {many, 0, ReasonAnswers},
		"full.example.com":  {many[:MaxAnswers], 0, ""},
		"chain.example.com": {many[:1], MaxChain + 1, ReasonChain},
		"short.example.com": {many[:1], MaxChain, ""},
		"none.example.com":  {nil, 0, ReasonResolve},
	} {
		l.names.set(name, 0, tt.ips...)
		l.names.answers[name] = Answer{Addrs: l.names.answers[name].Addrs, Chain: tt.chain}
		_, err := l.egress.DialContext(t.Context(), "tcp", name+":443")
		if tt.want != "" {
			wantDenied(t, err, tt.want)
		} else if d := l.lastDecision(); !d.Allow {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
