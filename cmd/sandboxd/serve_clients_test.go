package main

import (
	"crypto/sha256"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
)

// A token is good for what its client may see; every other is refused, and no
// error repeats one.
func TestAuthorizeKnowsClients(t *testing.T) {
	all := []config.Client{
		{Name: "desk", TokenSHA256: sha256.Sum256([]byte("token-of-the-desk")), Servers: []string{"files"}, Tools: []string{"read_*"}},
		{Name: "engine", TokenSHA256: sha256.Sum256([]byte("token-of-the-engine")), Servers: []string{"*"}},
	}
	for _, tt := range []struct {
		operator, header, want string
	}{
		{"token-of-the-operator", "Bearer token-of-the-operator", "everything"},
		{"token-of-the-operator", "Bearer token-of-the-desk", "desk"},
		{"", "Bearer token-of-the-engine", "engine"},
		{"", "Bearer token-of-the-operator", "refused"},
		{"", "Bearer ", "refused"},
		{"", "", "refused"},
		{"", "token-of-the-desk", "refused"},
		{"", "Bearer token-of-the-desk ", "refused"},
		{"", "Basic token-of-the-desk", "refused"},
	} {
		req := httptest.NewRequest("GET", "/mcp", nil)
		req.Header.Set("Authorization", tt.header)
		scope, err := authorize(tt.operator, all)(req)
		got := "everything"
		switch {
		case err != nil:
			got = "refused"
			if strings.Contains(err.Error(), "token-of") {
				t.Errorf("%q: the error is %v", tt.header, err)
			}
		case scope != nil:
			got = scope.Name
		}
		if got != tt.want {
			t.Errorf("%q is %s, want %s", tt.header, got, tt.want)
		}
	}
}
