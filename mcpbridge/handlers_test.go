package mcpbridge

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// What is served beside the registry's paths meets the same checks.
func TestMoreHandlers(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	url := serve(t, newRegistry(t, Config{Handlers: map[string]http.Handler{"/more": hello}})).URL
	for _, tt := range []struct {
		path   string
		header []string
		status int
	}{
		{"/more", nil, 200},
		{"/more/below", nil, 404},
		{"/more", []string{"Origin", "https://evil.example"}, 403},
		{"/more", []string{"Host", "evil.example"}, 403},
	} {
		if status, body, _ := do(t, "GET", url+tt.path, "", tt.header...); status != tt.status || status == 200 && body != "hello" {
			t.Errorf("%s %v: %d %s", tt.path, tt.header, status, body)
		}
	}
	for path, h := range map[string]http.Handler{"/mcp": hello, "/mcp/x": hello, "/api/v1/x": hello, "/healthz": hello, "/": hello, "x": hello, "GET /x": hello, "/{x}": hello, "/x": nil} {
		if _, err := New(Config{Handlers: map[string]http.Handler{path: h}}); err == nil {
			t.Errorf("%q was taken", path)
		}
	}
}

func TestPublishedName(t *testing.T) {
	long := PublishedName("relavium_", strings.Repeat("a", 100))
	for id, want := range map[string]string{"deploy": "relavium_deploy", "a.b/c": "relavium_a_b_c", "é\xff\u202e": "relavium____"} {
		if got := PublishedName("relavium_", id); got != want {
			t.Errorf("%q: %s, want %s", id, got, want)
		}
	}
	if len(long) != 64 || long == PublishedName("relavium_", strings.Repeat("a", 101)) {
		t.Error(long)
	}
}
