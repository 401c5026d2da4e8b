package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// ServeStdio serves one client over two streams, one message a line, until the
// client's stream or ctx ends; then the client's runs are cancelled and waited
// for, within a bound. The error is about the streams.
//
// A Read of in that is blocked when ctx ends can only be ended by its owner:
// ServeStdio sets a read deadline where in has one, else it leaves that one
// goroutine to end with the next Read.
func (p *Publisher) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	s := p.open(func(_ relay.Message, raw []byte) {
		mu.Lock()
		defer mu.Unlock()
		if _, err := out.Write(append(raw, '\n')); err != nil {
			cancel(fmt.Errorf("writing to the client: %w", err))
		}
	})
	var reading sync.WaitGroup
	reading.Go(func() { cancel(s.readLines(in)) })
	<-ctx.Done()
	err := context.Cause(ctx)
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer done()
	cerr := s.Close(stop)
	if d, ok := in.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Unix(1, 0)) == nil {
		reading.Wait()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, cerr)
}

func (s *session) readLines(in io.Reader) error {
	lines := relay.NewReader(in, int(s.p.cfg.MaxBody))
	for {
		l, err := lines.Next()
		if err != nil {
			return err
		}
		m, perr := relay.Peek(l.Text)
		switch {
		case l.Oversize > 0:
			s.fail(m.ID.Of(l.Text), -32600, fmt.Sprintf("the message is over %d bytes", s.p.cfg.MaxBody))
		case perr != nil:
			s.fail(nil, -32700, perr.Error())
		default:
			if err := s.Receive(s.ctx, m, lines.Take(l)); err != nil {
				return err
			}
		}
	}
}

// receiveText takes one message of a transport that has frames.
func (s *session) receiveText(ctx context.Context, raw []byte) error {
	m, err := relay.Peek(raw)
	if err != nil {
		s.fail(nil, -32700, err.Error())
		return nil
	}
	streamhttp.OneLine(raw)
	return s.Receive(ctx, m, raw)
}
