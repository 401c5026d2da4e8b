package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
)

const (
	subprotocol = "mcp"
	writeWait   = time.Minute // for one message
)

// socket is the WebSocket of a session. Its context ends after the session's,
// which leaves time for the closing handshake (RFC 6455, 7).
type socket struct {
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	// busy counts the messages on their way; moved, those that arrived. Both
	// tell a peer that is slow from one that is dead.
	busy, moved atomic.Int64
}

// startSocket opens the WebSocket. A redirect of the handshake is none.
func (s *Server) startSocket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endpointMax)
	defer cancel()
	conn, err := s.handshake(ctx, true)
	if err != nil {
		return err
	}
	if conn.Subprotocol() != subprotocol {
		_ = conn.Close(websocket.StatusProtocolError, "the subprotocol is "+subprotocol)
		return fmt.Errorf("the server does not speak the WebSocket subprotocol %s", subprotocol)
	}
	conn.SetReadLimit(int64(s.cfg.MaxMessage))
	s.socket = &socket{conn: conn}
	s.socket.ctx, s.socket.cancel = context.WithCancel(context.WithoutCancel(s.ctx))
	s.wg.Go(s.receive)
	s.wg.Go(s.keepAlive)
	return nil
}

// handshake opens the connection, and tries again once where there are other
// credentials. Compression is not offered: a small frame cannot become a huge
// message.
func (s *Server) handshake(ctx context.Context, again bool) (*websocket.Conn, error) {
	header := http.Header{}
	for k, v := range s.cfg.Header {
		header[http.CanonicalHeaderKey(k)] = v
	}
	token := ""
	if s.cfg.Credentials != nil {
		var err error
		if token, err = s.authorize(ctx, header); err != nil {
			return nil, err
		}
	}
	conn, res, err := websocket.Dial(ctx, s.cfg.URL, &websocket.DialOptions{ //nolint:bodyclose // Dial sees to the body
		HTTPClient: s.cfg.Client, HTTPHeader: header, Subprotocols: []string{subprotocol},
		CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil:
		return conn, nil
	case res == nil:
		return nil, errors.New(unreachable(err))
	case res.StatusCode == http.StatusSwitchingProtocols:
		return nil, errors.New("the server's answer is no WebSocket handshake (RFC 6455)")
	case res.StatusCode/100 == 3:
		return nil, fmt.Errorf("the server answered %s to the WebSocket handshake: redirects of it are not followed, so use the url that it leads to", status(res.StatusCode))
	}
	if s.cfg.Credentials != nil && (res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden) {
		more, err := s.cfg.Credentials.Refused(ctx, token, res.StatusCode, res.Header.Values("WWW-Authenticate"))
		if err != nil {
			return nil, loginError{err}
		}
		if more && again {
			return s.handshake(ctx, false)
		}
	}
	return nil, fmt.Errorf("the server answered %s to the WebSocket handshake%s", status(res.StatusCode), loginHint(res.StatusCode, res.Header))
}

// loginHint is the next step where a server wants credentials.
func loginHint(code int, h http.Header) string {
	switch {
	case code != http.StatusUnauthorized && code != http.StatusForbidden:
		return ""
	case strings.Contains(strings.ToLower(strings.Join(h.Values("WWW-Authenticate"), " ")), "bearer"):
		return ": it wants other credentials in headers, or a login, which the key oauth lets it have"
	}
	return ": it wants other credentials in headers"
}

// receive passes on each text message until the connection ends.
func (s *Server) receive() {
	k := s.socket
	for {
		kind, data, err := k.conn.Read(k.ctx)
		switch {
		case err != nil:
			s.cancel(s.lost(err))
			return
		case kind != websocket.MessageText:
			s.breakOff(websocket.StatusUnsupportedData, "the server sent a binary frame, which carries no message")
			return
		case !utf8.Valid(data):
			s.breakOff(websocket.StatusInvalidFramePayloadData, "the server sent text that is not UTF-8")
			return
		}
		k.busy.Add(1)
		s.emit(data)
		k.moved.Add(1)
		k.busy.Add(-1)
	}
}

// breakOff ends the session for what the server did, and tells it.
func (s *Server) breakOff(code websocket.StatusCode, why string) {
	_ = s.socket.conn.Close(code, "")
	s.cancel(errors.New(why))
}

// lost says how the connection ended. The reason that a peer gives is its own
// text, and left out.
func (s *Server) lost(err error) error {
	switch code := websocket.CloseStatus(err); {
	case code != -1:
		return fmt.Errorf("the server closed the connection with code %d", code)
	case errors.Is(err, websocket.ErrMessageTooBig):
		return fmt.Errorf("the server sent a message of more than %d bytes", s.cfg.MaxMessage)
	}
	return errors.New("the connection to the server was lost: " + plain(err))
}

// write sends one message of the client's.
func (s *Server) write(line []byte) {
	k := s.socket
	ctx, cancel := context.WithTimeout(k.ctx, writeWait)
	defer cancel()
	k.busy.Add(1)
	err := k.conn.Write(ctx, websocket.MessageText, line)
	k.moved.Add(1)
	k.busy.Add(-1)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.cancel(fmt.Errorf("the server did not take a message within %s", writeWait))
	default:
		s.cancel(s.lost(err))
	}
}

// keepAlive asks for a sign of life now and then. While messages are on their
// way none is missed: a pong may be behind them.
func (s *Server) keepAlive() {
	k := s.socket
	t := time.NewTicker(s.cfg.PingEvery)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		moved := k.moved.Load()
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.PingEvery)
		err := k.conn.Ping(ctx)
		cancel()
		switch {
		case err == nil || s.ctx.Err() != nil:
		case errors.Is(err, context.DeadlineExceeded) && (k.busy.Load() > 0 || k.moved.Load() != moved):
		default:
			s.cancel(errors.New("the server gave no sign of life: it did not answer a WebSocket ping"))
			return
		}
	}
}

// end closes the connection: by the handshake where nothing is wrong and the
// peer joins in, else by force.
func (k *socket) end(why error) {
	defer k.cancel()
	if !errors.Is(why, errEnded) {
		_ = k.conn.CloseNow()
		return
	}
	t := time.AfterFunc(endWait, k.cancel)
	defer t.Stop()
	_ = k.conn.Close(websocket.StatusNormalClosure, "")
}
