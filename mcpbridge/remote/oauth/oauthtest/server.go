package oauthtest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Server is an authorization server. Its fields are set before it serves.
type Server struct {
	// Issuer is its identifier, the URL where it is served.
	Issuer string
	// Hook, where set, sees each request first, and says whether it answered.
	Hook func(w http.ResponseWriter, r *http.Request) bool
	// Edit changes the metadata before it is sent.
	Edit func(meta map[string]any)
	// Lifetime of access tokens; 0 is an hour.
	Lifetime time.Duration
	// Secret makes registered clients confidential.
	Secret bool
	// Clients were registered beforehand: id to secret.
	Clients map[string]string

	mu       sync.Mutex
	clients  map[string]client
	codes    map[string]code
	access   map[string]Issued
	refresh  map[string]Issued
	used     map[string]bool // refresh tokens
	seen     []string        // method and path of each request
	revoked  int
	lastForm url.Values // of the token endpoint
}

type client struct {
	secret   string
	redirect string
}

type code struct {
	Issued
	challenge, redirect string
}

// Issued is what a token is good for.
type Issued struct {
	Client, Resource, Scope string
	Expires                 time.Time
}

// ServeHTTP serves the endpoints.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	if s.Hook != nil && s.Hook(w, r) {
		return
	}
	switch r.URL.Path {
	case "/.well-known/oauth-authorization-server":
		s.metadata(w)
	case "/authorize":
		s.authorize(w, r)
	case "/token":
		s.token(w, r)
	case "/register":
		s.register(w, r)
	case "/revoke":
		s.revoke(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) metadata(w http.ResponseWriter) {
	meta := map[string]any{
		"issuer": s.Issuer, "authorization_endpoint": s.Issuer + "/authorize", "token_endpoint": s.Issuer + "/token",
		"registration_endpoint": s.Issuer + "/register", "revocation_endpoint": s.Issuer + "/revoke",
		"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
		"token_endpoint_auth_methods_supported":          []string{"none", "client_secret_basic"},
		"authorization_response_iss_parameter_supported": true, "client_id_metadata_document_supported": true,
		"scopes_supported": []string{"read", "write", "offline_access"},
	}
	if s.Edit != nil {
		s.Edit(meta)
	}
	WriteJSON(w, http.StatusOK, meta)
}

// WriteJSON answers with a document.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, code string) {
	WriteJSON(w, status, map[string]string{"error": code, "error_description": "nothing of this hunter2 may be shown"})
}

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var req struct {
		RedirectURIs []string `json:"redirect_uris"`
		Type         string   `json:"application_type"`
	}
	if json.NewDecoder(r.Body).Decode(&req) != nil || len(req.RedirectURIs) != 1 || req.Type != "native" {
		refuse(w, http.StatusBadRequest, "invalid_client_metadata")
		return
	}
	c := client{redirect: req.RedirectURIs[0]}
	out := map[string]any{"redirect_uris": req.RedirectURIs, "token_endpoint_auth_method": "none"}
	if s.Secret {
		c.secret = "client-secret-" + rand.Text()
		out["client_secret"], out["token_endpoint_auth_method"] = c.secret, "client_secret_basic"
	}
	id := "client-" + rand.Text()
	out["client_id"] = id
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients == nil {
		s.clients = map[string]client{}
	}
	s.clients[id] = c
	WriteJSON(w, http.StatusCreated, out)
}

func (s *Server) client(id string) (client, bool) {
	if secret, ok := s.Clients[id]; ok {
		return client{secret: secret}, true
	}
	if strings.HasPrefix(id, "https://") {
		return client{}, true // a metadata document, which nobody fetches here
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.clients[id]
	return c, ok
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c, ok := s.client(q.Get("client_id"))
	redirect := q.Get("redirect_uri")
	if !ok || c.redirect != "" && c.redirect != redirect || q.Get("code_challenge_method") != "S256" || q.Get("resource") == "" || len(q.Get("state")) < 16 {
		http.Error(w, "bad authorization request", http.StatusBadRequest)
		return
	}
	id := "code-" + rand.Text()
	s.mu.Lock()
	if s.codes == nil {
		s.codes = map[string]code{}
	}
	s.codes[id] = code{Issued{q.Get("client_id"), q.Get("resource"), q.Get("scope"), time.Time{}}, q.Get("code_challenge"), redirect}
	s.mu.Unlock()
	http.Redirect(w, r, redirect+"?"+url.Values{"code": {id}, "state": {q.Get("state")}, "iss": {s.Issuer}}.Encode(), http.StatusFound) //nolint:gosec // it sends a browser where the client registered, for tests
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if r.ParseForm() != nil {
		refuse(w, http.StatusBadRequest, "invalid_request")
		return
	}
	s.mu.Lock()
	s.lastForm = r.PostForm
	s.mu.Unlock()
	id, secret, basic := r.BasicAuth()
	id, _ = url.QueryUnescape(id) // RFC 6749, 2.3.1
	secret, _ = url.QueryUnescape(secret)
	if !basic {
		id = r.PostForm.Get("client_id")
	}
	c, ok := s.client(id)
	if !ok || c.secret != "" && (!basic || secret != c.secret) {
		refuse(w, http.StatusUnauthorized, "invalid_client")
		return
	}
	var got Issued
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.PostForm.Get("grant_type") {
	case "authorization_code":
		co, ok := s.codes[r.PostForm.Get("code")]
		delete(s.codes, r.PostForm.Get("code"))
		sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		if !ok || co.Client != id || co.redirect != r.PostForm.Get("redirect_uri") || base64.RawURLEncoding.EncodeToString(sum[:]) != co.challenge {
			refuse(w, http.StatusBadRequest, "invalid_grant")
			return
		}
		got = co.Issued
	case "refresh_token":
		t := r.PostForm.Get("refresh_token")
		was, ok := s.refresh[t]
		if s.used[t] { // somebody has stolen it: the family ends (RFC 9700, 4.14.2)
			clear(s.refresh)
		}
		if !ok || s.used[t] || was.Client != id {
			refuse(w, http.StatusBadRequest, "invalid_grant")
			return
		}
		if s.used == nil {
			s.used = map[string]bool{}
		}
		s.used[t] = true
		got = was
	default:
		refuse(w, http.StatusBadRequest, "unsupported_grant_type")
		return
	}
	if r.PostForm.Get("resource") != got.Resource {
		refuse(w, http.StatusBadRequest, "invalid_target")
		return
	}
	s.issue(w, got)
}

func (s *Server) issue(w http.ResponseWriter, got Issued) {
	life := s.Lifetime
	if life == 0 {
		life = time.Hour
	}
	got.Expires = time.Now().Add(life)
	access, refresh := "access-"+rand.Text(), "refresh-"+rand.Text()
	if s.access == nil {
		s.access, s.refresh = map[string]Issued{}, map[string]Issued{}
	}
	s.access[access], s.refresh[refresh] = got, got
	WriteJSON(w, http.StatusOK, map[string]any{
		"access_token": access, "token_type": "Bearer", "expires_in": int(life.Seconds()), "refresh_token": refresh, "scope": got.Scope,
	})
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.refresh[r.PostForm.Get("token")]; ok {
		s.revoked++
		clear(s.refresh)
		clear(s.access)
	}
}

// Forget ends every access token, and the refresh tokens too.
func (s *Server) Forget(refresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.access)
	if refresh {
		clear(s.refresh)
	}
}

// Seen are the requests so far, as "METHOD PATH".
func (s *Server) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Revoked counts the revocations.
func (s *Server) Revoked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked
}

// Secrets are all tokens and client secrets that were ever given out.
func (s *Server) Secrets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for t := range s.access {
		out = append(out, t)
	}
	for t := range s.refresh {
		out = append(out, t)
	}
	for t := range s.used {
		out = append(out, t)
	}
	for _, c := range s.clients {
		if c.secret != "" {
			out = append(out, c.secret)
		}
	}
	return out
}

// Approve is the user: it opens the login's URL with hc, which follows no
// redirect, says yes, and returns where the browser is sent.
func Approve(hc *http.Client, authURL string) (string, error) {
	res, err := hc.Get(authURL) //nolint:noctx // a test's
	if err != nil {
		return "", err
	}
	defer res.Body.Close() //nolint:errcheck // nothing is read
	if res.StatusCode != http.StatusFound {
		return "", fmt.Errorf("the authorization endpoint answered %s", res.Status)
	}
	return res.Header.Get("Location"), nil
}
