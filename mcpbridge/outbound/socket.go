package outbound

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Subprotocol is the WebSocket subprotocol (RFC 6455, 1.9): one JSON-RPC
// message a text frame. MCP itself defines no such transport.
const Subprotocol = "mcp"

const (
	socketWrite = 30 * time.Second // for a client to take one message
	socketPing  = 25 * time.Second // between signs of life
)

// socket is one client's WebSocket.
type socket struct {
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func (k *socket) drop(why error) { k.cancel(why) }

func isUpgrade(r *http.Request) bool {
	return r.Method == http.MethodGet && slices.ContainsFunc(tokens(r, "Upgrade"), func(t string) bool { return strings.EqualFold(t, "websocket") })
}

func tokens(r *http.Request, header string) []string {
	var out []string
	for _, t := range strings.Split(strings.Join(r.Header.Values(header), ","), ",") {
		out = append(out, strings.TrimSpace(t))
	}
	return out
}

func (p *Publisher) serveSocket(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(tokens(r, "Sec-WebSocket-Protocol"), Subprotocol) {
		http.Error(w, "the subprotocol is "+Subprotocol, http.StatusBadRequest)
		return
	}
	k := &socket{}
	// A hijacked connection has no use for its request's context.
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer k.cancel(nil)
	if !p.admit(k) {
		http.Error(w, "too many clients are connected", http.StatusServiceUnavailable)
		return
	}
	defer p.release(k)
	var err error
	k.conn, err = websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{Subprotocol}, InsecureSkipVerify: p.cfg.OriginChecked,
	})
	if err != nil { // and it has answered
		p.cfg.Logger.Debug("a WebSocket could not be opened", "error", plain(err.Error()))
		return
	}
	defer k.conn.CloseNow() //nolint:errcheck // nothing is left to be lost
	k.conn.SetReadLimit(p.cfg.MaxBody)
	s := p.open(k.write)
	k.serve(s) //nolint:contextcheck // the connection outlives its request
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil { //nolint:contextcheck // and what it began is ended also after it has
		p.cfg.Logger.Warn("a WebSocket's session did not close cleanly", "error", plain(err.Error()))
	}
}

func (p *Publisher) admit(k *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.sockets) >= p.cfg.MaxSessions {
		return false
	}
	p.sockets[k] = struct{}{}
	p.wg.Add(1)
	return true
}

func (p *Publisher) release(k *socket) {
	p.mu.Lock()
	delete(p.sockets, k)
	p.mu.Unlock()
	p.wg.Done()
}

// write sends one message. A client that does not take it is dropped.
func (k *socket) write(_ relay.Message, raw []byte) {
	ctx, cancel := context.WithTimeout(k.ctx, socketWrite)
	defer cancel()
	if err := k.conn.Write(ctx, websocket.MessageText, raw); err != nil {
		k.drop(err)
	}
}

var errBinary = errors.New("a binary frame came")

// serve reads until the connection or the session ends.
func (k *socket) serve(s *session) {
	pinging := make(chan struct{})
	go func() { defer close(pinging); k.ping() }()
	for {
		typ, raw, err := k.conn.Read(k.ctx)
		if err == nil && typ != websocket.MessageText {
			_ = k.conn.Close(websocket.StatusUnsupportedData, "messages are text frames")
			err = errBinary
		}
		if err == nil {
			err = s.receiveText(k.ctx, raw)
		}
		if err != nil {
			k.drop(err)
			break
		}
	}
	<-pinging
}

// ping finds out that a client is gone without having said so.
func (k *socket) ping() {
	t := time.NewTicker(socketPing)
	defer t.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(k.ctx, socketWrite)
		err := k.conn.Ping(ctx)
		cancel()
		if err != nil {
			k.drop(err)
			return
		}
	}
}
