package oauth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// leeway is how long before its end a token is replaced.
	leeway = 30 * time.Second
	// askWait bounds one request to an authorization server.
	askWait = 30 * time.Second
	// fresh is how long the store is believed without looking again.
	fresh = time.Second
	// refreshPause keeps a server that refuses every token, or an
	// authorization server that is down, from being asked all the time.
	refreshPause = 10 * time.Second
)

// Config says which server to log in to, and whom to trust with that.
type Config struct {
	Key Key
	// URL is the MCP server's: http or https, ws or wss.
	URL string
	// Issuers are the authorization servers that are trusted, by their issuer
	// identifiers; none means that nothing is.
	Issuers []string
	// Hosts are further HOST or HOST:PORT on which an issuer's endpoints, or the
	// server's metadata, may be.
	Hosts []string
	// ClientID and ClientSecret are of a client that was registered beforehand;
	// ClientMetadataURL is a client id metadata document's.
	ClientID          string
	ClientSecret      Secret
	ClientMetadataURL string
	// ClientName is shown to the user by the authorization server.
	ClientName string
	// Scopes, where given, are asked for, and no others.
	Scopes []string
	// Loopback permits http, for hosts that are loopback ones.
	Loopback bool
	// Open makes an HTTP client for some requests, and its end. The client
	// judges every host by a policy and keeps no connections.
	Open  func() (client *http.Client, end func())
	Store TokenStore
	// Login is the command that logs in, for errors.
	Login string
	// Logger receives what goes wrong beside; nil discards it.
	Logger *slog.Logger
}

// Client logs in to one server and keeps the login alive. It is safe for
// concurrent use.
type Client struct {
	cfg  Config
	base *url.URL // the server's, as http or https
	log  *slog.Logger

	busy  chan struct{} // held by who reads or changes the state below
	state state
	had   atomic.Bool // Arrived's last word
}

// state is what a Client remembers of its store.
type state struct {
	grant     *Grant
	looked    time.Time
	refreshed time.Time // the last attempt
	failure   error     // of that attempt, where another may help
}

// New checks a configuration.
func New(cfg Config) (*Client, error) {
	c := &Client{cfg: cfg, log: cfg.Logger, busy: make(chan struct{}, 1)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Open == nil || cfg.Store == nil || cfg.Key.Server == "" || cfg.Key.Tenant == "" {
		return nil, errors.New("a login needs a key, a store and an HTTP client")
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" {
		return nil, errors.New("a login needs the server's url")
	}
	u.Scheme = strings.Replace(u.Scheme, "ws", "http", 1)
	u.RawQuery, u.Fragment, u.User = "", "", nil
	c.base = u
	c.cfg.Key.Resource = u.String()
	for _, iss := range cfg.Issuers {
		if _, err := c.endpoint(iss); err != nil {
			return nil, fmt.Errorf("issuer %.200q: %w", iss, err)
		}
	}
	return c, nil
}

// open makes an HTTP client that follows no redirect, whatever it is handed.
func (c *Client) open() (*http.Client, func()) {
	hc, end := c.cfg.Open()
	own := *hc
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own, end
}

// Key is the login's key in the store.
func (c *Client) Key() Key { return c.cfg.Key }

// LoginError says that there is no login that a server would take, and what to
// do.
type LoginError struct {
	Server  string
	Why     string
	Command string // logs in
}

// Error names the command.
func (e *LoginError) Error() string {
	s := fmt.Sprintf("server %s needs a login: %s", e.Server, e.Why)
	if e.Command != "" {
		s += ": run " + e.Command
	}
	return s
}

func (c *Client) needsLogin(why string) error {
	return &LoginError{Server: c.cfg.Key.Server, Why: why, Command: c.cfg.Login}
}

// HostError says that a host would have to be allowed.
type HostError struct {
	Server, What, Host string
}

// Error names the key to change.
func (e *HostError) Error() string {
	return fmt.Sprintf("%s is on %s, which is not allowed: if you trust it, add it to oauth.hosts of server %s", e.What, e.Host, e.Server)
}

// IssuerError says that none of the issuers that a server names is trusted.
type IssuerError struct {
	Server  string
	Offered []string // as the server has them, checked to be plain URLs
}

// Error names the key to change.
func (e *IssuerError) Error() string {
	if len(e.Offered) == 0 {
		return fmt.Sprintf("server %s names no authorization server: nobody can log in to it", e.Server)
	}
	return fmt.Sprintf("server %s wants a login at %s, which is not trusted: if you trust it, give the server oauth: {issuers: [%q]}",
		e.Server, strings.Join(e.Offered, " or "), e.Offered[0])
}

// endpoint reads a URL that requests may go to: https, or http on loopback
// where that is permitted.
func (c *Client) endpoint(s string) (*url.URL, error) {
	u, err := plainURL(s)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme == "https", u.Scheme == "http" && c.cfg.Loopback && isLoopback(u.Hostname()):
		return u, nil
	}
	return nil, errors.New("want https://")
}

func plainURL(s string) (*url.URL, error) {
	if len(s) > 2048 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' || r == '"' }) {
		return nil, errors.New("it is no plain URL")
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.Opaque != "" || u.User != nil || strings.Contains(s, "#") {
		return nil, errors.New("it is no plain URL")
	}
	return u, nil
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// allowed refuses a host that is neither among own nor among Hosts.
func (c *Client) allowed(what string, u *url.URL, own ...*url.URL) error {
	host := HostPort(u)
	for _, o := range own {
		if HostPort(o) == host && o.Scheme == u.Scheme {
			return nil
		}
	}
	if slices.ContainsFunc(c.cfg.Hosts, func(h string) bool { return withPort(h) == host }) {
		return nil
	}
	return &HostError{Server: c.cfg.Key.Server, What: what, Host: strings.TrimSuffix(host, ":443")}
}

// HostPort is a URL's host with its port, in lower case.
func HostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" || u.Scheme == "ws" {
			port = "80"
		}
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

func withPort(h string) string {
	if host, port, err := net.SplitHostPort(h); err == nil {
		return net.JoinHostPort(strings.ToLower(host), port)
	}
	return net.JoinHostPort(strings.ToLower(strings.Trim(h, "[]")), "443")
}
