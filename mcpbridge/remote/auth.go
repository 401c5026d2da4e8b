package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// minSecret is the least length of what is looked for in a server's output: a
// shorter word would hit what is no secret.
const minSecret = 12

// loginError is an error of the credentials, in their own words.
type loginError struct{ err error }

func (e loginError) Error() string { return e.err.Error() }
func (e loginError) Unwrap() error { return e.err }

// do sends a request with the credentials, and once more where there are
// others. The body of req can be read again.
func (s *Server) do(req *http.Request) (*http.Response, error) {
	if s.cfg.Credentials == nil {
		return s.cfg.Client.Do(req)
	}
	for again := true; ; {
		token, err := s.authorize(req.Context(), req.Header)
		if err != nil {
			return nil, err
		}
		res, err := s.cfg.Client.Do(req)
		if err != nil || !again || !refused(res, req.URL) {
			return res, err
		}
		again, err = s.cfg.Credentials.Refused(req.Context(), token, res.StatusCode, res.Header.Values("WWW-Authenticate"))
		if err != nil {
			_ = res.Body.Close()
			return nil, loginError{err}
		}
		if !again {
			return res, nil
		}
		_ = res.Body.Close()
		again = false
		next := req.Clone(req.Context())
		if req.GetBody != nil {
			if next.Body, err = req.GetBody(); err != nil {
				return nil, errors.New("the message could not be sent again")
			}
		}
		req = next
	}
}

// authorize puts the token into a request's header.
func (s *Server) authorize(ctx context.Context, h http.Header) (string, error) {
	token, err := s.cfg.Credentials.Token(ctx)
	if err != nil {
		return "", loginError{err}
	}
	s.hide(token)
	h.Set("Authorization", "Bearer "+token)
	return token, nil
}

// refused says whether the server itself refused the token: what another
// origin answered, after a redirect, never saw it.
func refused(res *http.Response, asked *url.URL) bool {
	if res.Request != nil && (res.Request.URL.Scheme != asked.Scheme || res.Request.URL.Host != asked.Host) {
		return false
	}
	return res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden
}

// bearer is the secret of an Authorization field.
func bearer(h http.Header) string {
	for k, v := range h {
		if http.CanonicalHeaderKey(k) == "Authorization" && len(v) > 0 {
			fields := strings.Fields(v[len(v)-1])
			if len(fields) > 0 {
				return fields[len(fields)-1]
			}
		}
	}
	return ""
}

// hide remembers a secret that the server knows, so that it does not come back
// in what the server says.
func (s *Server) hide(secret string) {
	if len(secret) < minSecret {
		return
	}
	b := []byte(secret)
	for {
		old := s.secrets.Load()
		var list [][]byte
		if old != nil {
			for _, x := range *old {
				if bytes.Equal(x, b) {
					return
				}
			}
			list = append(list, (*old)[max(0, len(*old)-3):]...)
		}
		list = append(list, b)
		if s.secrets.CompareAndSwap(old, &list) {
			return
		}
	}
}

// redact takes the secrets out of what a server said. It may return raw.
func (s *Server) redact(raw []byte) []byte {
	list := s.secrets.Load()
	if list == nil {
		return raw
	}
	for _, secret := range *list {
		if bytes.Contains(raw, secret) {
			raw = bytes.ReplaceAll(raw, secret, []byte("[secret]"))
		}
	}
	return raw
}

// status is a status in words of our own: a server puts what it likes there.
func status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// unreachable says why a request had no answer, without the URL that it was
// for: people put tokens there.
func unreachable(err error) string {
	var login loginError
	if errors.As(err, &login) {
		return login.Error()
	}
	return "the server could not be reached: " + plain(err)
}

// plain is an error without the URL that it was about.
func plain(err error) string {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return relay.Cut([]byte(err.Error()), 300)
}
