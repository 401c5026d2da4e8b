package oauth

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Receive serves the redirect on ln, which it closes, until one comes that
// belongs to the login, or ctx ends. Others are answered and change nothing: a
// web page that knows the port cannot spoil a login.
func (l *Login) Receive(ctx context.Context, ln net.Listener) (url.Values, error) {
	own, err := url.Parse(l.grant.RedirectURI)
	if err != nil {
		return nil, err
	}
	got := make(chan url.Values, 1)
	srv := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 20 * time.Second, MaxHeaderBytes: 32 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			_, err := l.code(q)
			switch {
			case r.Host != own.Host || r.URL.Path != RedirectPath:
				page(w, http.StatusNotFound, "There is nothing here.")
			case r.Method != http.MethodGet:
				page(w, http.StatusMethodNotAllowed, "There is nothing here.")
			case errors.Is(err, errStray):
				page(w, http.StatusBadRequest, "This does not belong to the login that is under way.")
			default:
				select {
				case got <- q:
					page(w, http.StatusOK, "You can close this window: sandboxd goes on in the terminal.")
				default:
					page(w, http.StatusBadRequest, "The login is over.")
				}
			}
		}),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	var q url.Values
	select {
	case q = <-got:
	case err = <-done:
		return nil, err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if srv.Shutdown(stop) != nil {
		_ = srv.Close()
	}
	if served := <-done; err == nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	return q, err
}

// ParseRedirect reads a redirect that the user copied from the browser's
// address line, or its query alone.
func ParseRedirect(s string) (url.Values, error) {
	s = strings.TrimSpace(s)
	if _, query, ok := strings.Cut(s, "?"); ok {
		s = query
	}
	s, _, _ = strings.Cut(s, "#")
	q, err := url.ParseQuery(s)
	if err != nil || len(s) > 32<<10 {
		return nil, errors.New("this is not the address that the browser was sent to: it holds code= and state=")
	}
	return q, nil
}

func page(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
