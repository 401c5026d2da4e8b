package oauthtest

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Protect puts a handler behind the server's tokens. resource is the URL of
// the handler, whose path its metadata is for; tokens must have all of scopes,
// which are asked of callers by a 403.
func (s *Server) Protect(h http.Handler, resource string, scopes ...string) http.Handler {
	_, rest, _ := strings.Cut(resource, "://")
	host, path, _ := strings.Cut(rest, "/")
	metadata := "/.well-known/oauth-protected-resource/" + path
	scheme, _, _ := strings.Cut(resource, ":")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == metadata {
			WriteJSON(w, http.StatusOK, map[string]any{"resource": resource, "authorization_servers": []string{s.Issuer}, "scopes_supported": []string{"read"}})
			return
		}
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		t, known := s.access[token]
		s.mu.Unlock()
		if !ok || !known || t.Resource != resource || time.Now().After(t.Expires) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="invalid_token", resource_metadata="%s://%s%s"`, scheme, host, metadata))
			http.Error(w, "no valid token: "+token, http.StatusUnauthorized)
			return
		}
		for _, want := range scopes {
			if !strings.Contains(" "+t.Scope+" ", " "+want+" ") {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="insufficient_scope", scope=%q`, strings.Join(scopes, " ")))
				http.Error(w, "not enough: "+token, http.StatusForbidden)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}
