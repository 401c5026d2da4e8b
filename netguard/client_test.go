package netguard

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// webLab is a lab with a TLS server behind api.example.com, whose certificate
// httptest made out to example.com.
func webLab(t *testing.T, cfg Config, h http.HandlerFunc) (*lab, *http.Client, *httptest.Server) {
	t.Helper()
	l := newLab(t, cfg)
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	l.names.set("example.com", time.Minute, "8.8.8.8")
	l.place("8.8.8.8:443", srv.Listener.Addr().String())
	client := l.egress.HTTPClient(HTTPOptions{KeepMethod: true, TLS: srv.Client().Transport.(*http.Transport).TLSClientConfig})
	return l, client, srv
}

func get(t *testing.T, c *http.Client, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), nil
}

// TestClientJudgesEveryRequest holds that a pooled connection, which no dialer
// sees again, is no way around a policy that has changed, and that the policy
// is asked about the URL's own host and scheme.
func TestClientJudgesEveryRequest(t *testing.T) {
	l, client, _ := webLab(t, Config{Mode: ModePublic}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto)
	})
	for range 2 {
		if body, err := get(t, client, "https://example.com/"); err != nil || body != "HTTP/2.0" {
			t.Fatalf("%q, %v", body, err)
		}
	}
	if len(l.dialled) != 1 {
		t.Errorf("%d dials for two requests", len(l.dialled))
	}
	p, err := Compile(Config{Mode: ModePublic, Schemes: []string{"http"}})
	if err != nil {
		t.Fatal(err)
	}
	l.egress.SetPolicy(p)
	_, err = get(t, client, "https://example.com/")
	wantDenied(t, err, ReasonScheme)
	if p, err = Compile(Config{Mode: ModePublic, Deny: []Rule{{Host: "example.com"}}}); err != nil {
		t.Fatal(err)
	}
	l.egress.SetPolicy(p)
	_, err = get(t, client, "https://example.com/")
	wantDenied(t, err, ReasonDenyRule)
	l.egress.SetPolicy(nil)
	_, err = get(t, client, "https://example.com/")
	wantDenied(t, err, ReasonNoPolicy)
	if len(l.dialled) != 1 {
		t.Errorf("%d dials", len(l.dialled))
	}
}

// TestClientHost holds that the Host of a request cannot name another site.
func TestClientHost(t *testing.T) {
	_, client, _ := webLab(t, Config{Mode: ModePublic}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) })
	for host, want := range map[string]Reason{"evil.example.net": ReasonRequestHost, "example.com:8443": ReasonRequestHost, "EXAMPLE.com:443": "", "example.com\r\nX: y": ReasonRequestHost} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := client.Do(req)
		if want != "" {
			wantDenied(t, err, want)
		}
		if err == nil {
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if want != "" || string(body) != "example.com" {
				t.Errorf("%q: the server saw %q", host, body)
			}
		}
	}
}

// TestClientIgnoresProxies holds that no variable of the environment leads a
// request elsewhere.
func TestClientIgnoresProxies(t *testing.T) {
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy"} {
		t.Setenv(v, "http://127.0.0.1:1")
	}
	l, client, _ := webLab(t, Config{Mode: ModePublic}, func(http.ResponseWriter, *http.Request) {})
	if _, err := get(t, client, "https://example.com/"); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(l.dialled); got != "[8.8.8.8:443]" {
		t.Errorf("dialled %s", got)
	}
}

// TestClientRedirects holds the rules that need a body or a state of their
// own; the cases files hold the rest.
func TestClientRedirects(t *testing.T) {
	var bodies []string
	_, client, _ := webLab(t, Config{Mode: ModePublic}, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, r.Method+" "+r.URL.Path+" "+string(b))
		switch r.URL.Path {
		case "/307":
			w.Header().Set("Location", "/done")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case "/303":
			w.Header().Set("Location", "/done")
			w.WriteHeader(http.StatusSeeOther)
		case "/bare":
			w.WriteHeader(http.StatusFound)
		}
	})
	post := func(path string, body io.Reader) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.com"+path, body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := post("/307", strings.NewReader("secret")); err != nil {
		t.Error(err)
	}
	wantDenied(t, post("/303", strings.NewReader("secret")), ReasonRedirMethod)
	wantDenied(t, post("/307", io.MultiReader(bytes.NewReader([]byte("once")))), ReasonRedirBody)
	if err := post("/bare", nil); err != nil {
		t.Errorf("a redirect without Location: %v", err)
	}
	want := "[POST /307 secret POST /done secret POST /303 secret POST /307 once POST /bare ]"
	if got := fmt.Sprint(bodies); got != want {
		t.Errorf("the server saw %s", got)
	}
}

// TestRecordsHoldNoSecrets holds that neither userinfo nor a query reaches a
// record or a denial.
func TestRecordsHoldNoSecrets(t *testing.T) {
	l, _, _ := webLab(t, Config{Mode: ModePublic}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "https://user:s3cret@example.com/?token=s3cret")
		w.WriteHeader(http.StatusFound)
	})
	rt := l.egress.RoundTripper(HTTPOptions{TLS: &tls.Config{InsecureSkipVerify: true}})
	for _, u := range []string{"https://example.com/?token=s3cret", "https://user:s3cret@example.com/", "https://no.such.test/?token=s3cret#s3cret"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s went through", u)
			continue
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v", err)
		}
	}
	if s := fmt.Sprintf("%+v", l.records); strings.Contains(s, "s3cret") || len(l.records) == 0 {
		t.Errorf("records: %s", s)
	}
}

// TestWebSocketThroughTheClient holds that an upgrade works over the same
// checked path, both through the client and through a dialled TLS connection.
func TestWebSocketThroughTheClient(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "example.com"}}, Schemes: []string{"wss"}})
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(c, rw)
	}))
	defer srv.Close()
	l.names.set("example.com", time.Minute, "8.8.8.8")
	l.place("8.8.8.8:443", srv.Listener.Addr().String())
	cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig
	client := l.egress.HTTPClient(HTTPOptions{TLS: cfg})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s, %T", resp.Status, resp.Body)
	}
	fmt.Fprint(rw, "ping")
	buf := make([]byte, 4)
	if _, err := io.ReadFull(rw, buf); err != nil || string(buf) != "ping" {
		t.Errorf("%q, %v", buf, err)
	}
	_ = rw.Close()
	_, err = get(t, client, "https://example.com/")
	wantDenied(t, err, ReasonScheme)

	c, err := l.egress.DialTLSContext(t.Context(), "tcp", "example.com:443", cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if _, err := l.egress.DialTLSContext(t.Context(), "tcp", "evil.example.net:443", cfg); !errors.Is(err, &DeniedError{Reason: ReasonNotAllowed}) {
		t.Errorf("%v", err)
	}
	_, err = l.egress.DialTLSContext(t.Context(), "tcp", "127.1:443", cfg)
	wantDenied(t, err, ReasonHostNumeric)
}

// TestClientEndsWithTheEgress holds that Close ends a response that is still
// being read.
func TestClientEndsWithTheEgress(t *testing.T) {
	l, client, _ := webLab(t, Config{Mode: ModePublic}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "x")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.egress.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the response goes on")
	}
	_ = resp.Body.Close()
	_, err = get(t, client, "https://example.com/")
	wantDenied(t, err, ReasonClosed)
}

// TestClientProtocol holds that a rule for TLS does not open plain HTTP.
func TestClientProtocol(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{
		{Host: "a.example.com", Ports: []Port{"80", "443", "8080"}},
		{Host: "b.example.com", Ports: []Port{"80"}, Protocol: ProtocolTLS},
		{Host: "c.example.com", Ports: []Port{"8080"}, Protocol: ProtocolHTTP},
	}})
	for _, n := range []string{"a", "b", "c"} {
		l.names.set(n+".example.com", 0, "8.8.8.8")
	}
	client := l.egress.HTTPClient(HTTPOptions{})
	for u, want := range map[string]Reason{
		"http://a.example.com/":      "",
		"http://a.example.com:8080/": ReasonProtocol,
		"https://a.example.com:80/":  "",
		"http://b.example.com/":      ReasonProtocol,
		"http://c.example.com:8080/": "",
		"http://c.example.com/":      ReasonPort,
	} {
		_, err := get(t, client, u)
		var denied *DeniedError
		switch {
		case want != "":
			wantDenied(t, err, want)
		case err == nil || errors.As(err, &denied):
			t.Errorf("%s: %v; want a failed dial", u, err)
		}
	}
	var nobody net.Error
	if _, err := get(t, client, "http://a.example.com/"); !errors.As(err, &nobody) {
		t.Errorf("%v", err)
	}
}
