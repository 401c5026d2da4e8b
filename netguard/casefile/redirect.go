package casefile

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/netguard"
)

// chain is the input of a redirect_chain case.
type chain struct {
	Request struct {
		Method  string            `json:"method"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Body    bool              `json:"body"`
	} `json:"request"`
	Responses []response `json:"responses"`
}

type response struct {
	Status   int       `json:"status"`
	Location locations `json:"location"`
}

// locations is one Location field or several.
type locations []string

// UnmarshalJSON takes a string, a list of strings or null.
func (l *locations) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil && string(b) != "null" {
		*l = locations{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// request is the chain's first request.
func (c chain) request(ctx context.Context) (*http.Request, error) {
	var body io.Reader
	if c.Request.Body {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(ctx, c.Request.Method, c.Request.URL, body)
	if err != nil {
		return nil, err
	}
	for k, v := range c.Request.Headers {
		req.Header.Set(k, v)
	}
	return req, nil
}

func runRedirect(b *bench, raw json.RawMessage) (got, error) {
	var c chain
	if err := decode(raw, &c); err != nil {
		return got{}, err
	}
	req, err := c.request(context.Background())
	if err != nil {
		_, reason := netguard.ParseURL(c.Request.URL)
		if reason == "" {
			reason = netguard.ReasonURLSyntax
		}
		return invalid(reason), nil
	}
	var sent []*http.Request
	wire := func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r)
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
		if n := len(sent) - 1; n < len(c.Responses) {
			resp.StatusCode = c.Responses[n].Status
			if c.Responses[n].Location != nil {
				resp.Header["Location"] = c.Responses[n].Location
			}
		}
		return resp, nil
	}
	resp, err := b.egress.RoundTripper(netguard.HTTPOptions{Wire: wire}).RoundTrip(req)
	if err != nil {
		return refusal(b, err), nil
	}
	_ = resp.Body.Close()
	return c.followed(sent[len(sent)-1], len(sent)-1), nil
}

// followed is the outcome of a chain that ended with the request last.
func (c chain) followed(last *http.Request, hops int) got {
	return got{Outcome: Allow, detail: Detail{
		FinalURL:    lowerAuthority(last.URL.String()),
		FinalMethod: last.Method,
		Sent:        names(last.Header, c.Request.Headers),
		Hops:        &hops,
	}}
}

// refusal is a client error as an outcome.
func refusal(b *bench, err error) got {
	var denied *netguard.DeniedError
	if !errors.As(err, &denied) {
		return got{Outcome: Deny, Note: err.Error()}
	}
	g := outcome(false, denied.Reason, "", denied.Rule)
	g.Class = b.decision().Class
	return g
}

// names lists which of the caller's headers were sent, in lower case.
func names(h http.Header, caller map[string]string) []string {
	var out []string
	for k := range caller {
		if _, ok := h[http.CanonicalHeaderKey(k)]; ok {
			out = append(out, strings.ToLower(k))
		}
	}
	slices.Sort(out)
	return out
}

// lowerAuthority writes a URL's scheme and host in lower case.
func lowerAuthority(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return s
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	return u.String()
}
