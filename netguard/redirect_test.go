package netguard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func mustURL(t testing.TB, s string) URL {
	t.Helper()
	u, reason := ParseURL(s)
	if reason != "" {
		t.Fatalf("%q: %s", s, reason)
	}
	return u
}

func TestResolveLocation(t *testing.T) {
	base := mustURL(t, "https://a.example.com:8443/dir/x?q=1")
	for loc, want := range map[string]string{
		"/y":                                   "https://a.example.com:8443/y",
		"y":                                    "https://a.example.com:8443/dir/y",
		"../../..":                             "https://a.example.com:8443/",
		"?z":                                   "https://a.example.com:8443/dir/x?z",
		"#f":                                   "https://a.example.com:8443/dir/x?q=1#f",
		"//b.example.com/y":                    "https://b.example.com/y",
		"HTTP://b.example.com:81":              "HTTP://b.example.com:81",
		"/..//b.example.com":                   "https://a.example.com:8443/b.example.com",
		"/%2e%2e/@b.example.com":               "https://a.example.com:8443/%2e%2e/@b.example.com",
		"./a:b":                                "https://a.example.com:8443/dir/a:b",
		"":                                     "",
		"///b.example.com/":                    "",
		"https:/b.example.com":                 "",
		"https:b":                              "",
		"/\\b.example.com":                     "",
		"//a@b.example.com/":                   "",
		"/y z":                                 "",
		"/\x00":                                "",
		"/é":                                   "",
		"/%zz":                                 "",
		"//b.example.com:70000/":               "",
		"/" + strings.Repeat("a", maxLocation): "",
	} {
		text, u, reason := resolveLocation(base, []string{loc})
		if want == "" {
			if reason == "" {
				t.Errorf("%.40q leads to %q", loc, text)
			}
			continue
		}
		if reason != "" || text != want {
			t.Errorf("%q: %q, %q; want %q", loc, text, reason, want)
		}
		if !strings.HasPrefix(loc, "//") && !strings.HasPrefix(loc, "HTTP") && u.Target != base.Target {
			t.Errorf("%q leaves the origin for %v", loc, u.Target)
		}
	}
	for _, fields := range [][]string{nil, {"/a", "/b"}, {"/a", "/a"}} {
		if _, _, reason := resolveLocation(base, fields); reason != ReasonLocation {
			t.Errorf("%q: %q", fields, reason)
		}
	}
}

func TestNextHop(t *testing.T) {
	p, err := Compile(Config{Mode: ModePublic})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		method   string
		body     bool
		code     int
		location string
		keep     bool
		method2  string
		body2    bool
		reason   Reason
	}{
		{"POST", true, 301, "/y", false, "GET", false, ""},
		{"POST", true, 302, "/y", true, "", false, ReasonRedirMethod},
		{"POST", true, 303, "/y", true, "", false, ReasonRedirMethod},
		{"DELETE", false, 303, "/y", false, "GET", false, ""},
		{"PUT", true, 301, "/y", false, "PUT", true, ""},
		{"PUT", true, 302, "https://b.example.com/", false, "", false, ReasonRedirBody},
		{"POST", true, 307, "/y", true, "POST", true, ""},
		{"POST", true, 308, "https://b.example.com/", false, "", false, ReasonRedirBody},
		{"GET", false, 302, "http://a.example.com/", false, "", false, ReasonDowngrade},
		{"GET", false, 302, "wss://a.example.com/", false, "", false, ReasonScheme},
		{"HEAD", false, 303, "/y", false, "HEAD", false, ""},
	} {
		from := hop{url: mustURL(t, "https://a.example.com/x"), method: tt.method, body: tt.body}
		to, _, reason := nextHop(p, from, tt.code, []string{tt.location}, tt.keep)
		if reason != tt.reason || reason == "" && (to.method != tt.method2 || to.body != tt.body2) {
			t.Errorf("%s %d %s: %s, body %v, %q", tt.method, tt.code, tt.location, to.method, to.body, reason)
		}
	}
}

func TestHopHeader(t *testing.T) {
	h := http.Header{"Authorization": {"x"}, "Cookie": {"x"}, "X-Api-Key": {"x"}, "Accept": {"x"}, "Content-Type": {"x"}, "Www-Authenticate": {"x"}, "Referer": {"x"}}
	a, b := hop{url: mustURL(t, "https://a.example.com/"), body: true}, hop{url: mustURL(t, "https://a.example.com:444/")}
	got := hopHeader(h, a, b)
	if len(got) != 1 || got.Get("Accept") == "" {
		t.Errorf("another port, no body: %v", got)
	}
	b.body = true
	if got = hopHeader(h, a, b); len(got) != 2 || got.Get("Content-Type") == "" {
		t.Errorf("another port, with the body: %v", got)
	}
	a2 := a
	if got = hopHeader(h, a, a2); len(got) != len(h) {
		t.Errorf("same origin: %v", got)
	}
}

// FuzzLocation holds that whatever a server sends as Location either is
// refused or means the same target to net/url, within the base's origin
// unless it names an authority itself.
func FuzzLocation(f *testing.F) {
	for _, s := range []string{"/y", "//b/", "https://b.example.com/", "../x", "?q", "#f", "http:b", "\\\\b", "/a:b", "a:b", "//[::1]/", "/\t", "%2f%2fb"} {
		f.Add("https://a.example.com/dir/x?q", s)
	}
	seedCases(f, func(in any) {
		chain, _ := in.(map[string]any)
		for _, r := range chain["responses"].([]any) {
			if s, ok := r.(map[string]any)["location"].(string); ok {
				f.Add("https://a.example.com/x", s)
			}
		}
	}, "redirect_chain")
	f.Fuzz(func(t *testing.T, rawBase, loc string) {
		base, reason := ParseURL(rawBase)
		if reason != "" {
			return
		}
		text, u, reason := resolveLocation(base, []string{loc})
		if reason != "" {
			return
		}
		for i := range len(text) {
			if c := text[i]; c <= ' ' || c >= 0x7f || c == '\\' {
				t.Fatalf("%q keeps %q", text, c)
			}
		}
		if !strings.HasPrefix(loc, "//") && !hasScheme(loc) && !u.sameOrigin(base) {
			t.Fatalf("%q from %q leaves the origin for %v", loc, rawBase, u.Target)
		}
		std, err := url.Parse(text)
		if err != nil {
			return // the client refuses it
		}
		name, addr, r := ParseHost(std.Hostname())
		if r != "" || name != u.Target.Name || addr != u.Target.Addr || std.User != nil {
			t.Fatalf("%q: net/url goes to %q, the guard judged %v", text, std.Host, u.Target)
		}
	})
}
