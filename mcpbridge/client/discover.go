package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Stateless is the revision without a handshake or sessions.
const Stateless = "2026-07-28"

const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"

	codeUnsupportedVersion = -32022

	// probeTimeout bounds server/discover: a server that says nothing to it is
	// one of an older revision.
	probeTimeout = 10 * time.Second
)

// handshake finds out which era the server speaks. To a process, initialize
// comes first: some servers exit on a request that they do not know, and those
// that refuse initialize know the other one.
func (c *Client) handshake(ctx context.Context) error {
	if c.opts.Discover {
		err := c.discover(ctx)
		var gone *relay.ExitError
		if err == nil || errors.As(err, &gone) || ctx.Err() != nil {
			return err
		}
		return c.initialize(ctx)
	}
	err := c.initialize(ctx)
	var refused *RPCError
	if err == nil || (!errors.As(err, &refused) && !errors.Is(err, ErrProtocol)) {
		return err
	}
	if derr := c.discover(ctx); derr != nil {
		return err // of the older era then, and this is what it said
	}
	return nil
}

// discover asks a server of the newest revision what it is.
func (c *Client) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	params, err := c.stamp(nil, nil)
	if err != nil {
		return err
	}
	raw, err := c.exchange(ctx, "server/discover", params, nil)
	if supportedBy(err) {
		raw, err = c.exchange(ctx, "server/discover", params, nil)
	}
	if err != nil {
		return fmt.Errorf("server/discover: %w", err)
	}
	var res struct {
		SupportedVersions []string                   `json:"supportedVersions"`
		Capabilities      map[string]json.RawMessage `json:"capabilities"`
		ServerInfo        json.RawMessage            `json:"serverInfo"`
		Instructions      string                     `json:"instructions"`
		Meta              map[string]json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(raw, &res) != nil || !slices.Contains(res.SupportedVersions, Stateless) {
		return fmt.Errorf("server/discover: %w: it names no version that is supported", ErrProtocol)
	}
	if info := res.Meta[metaServer]; info != nil {
		res.ServerInfo = info
	}
	if res.ServerInfo == nil {
		res.ServerInfo = json.RawMessage(`{"name":"unnamed","version":"0"}`)
	}
	init := map[string]any{"protocolVersion": Versions()[0], "capabilities": res.Capabilities, "serverInfo": res.ServerInfo}
	if res.Capabilities == nil {
		init["capabilities"] = struct{}{}
	}
	if res.Instructions != "" {
		init["instructions"] = res.Instructions
	}
	if c.init.Raw, err = json.Marshal(init); err != nil {
		return err
	}
	c.init.ProtocolVersion, c.init.Capabilities, c.modern = Stateless, res.Capabilities, true
	c.listenLists()
	return nil
}

// supportedBy says whether a refusal names this client's version among those
// that the server has after all.
func supportedBy(err error) bool {
	var rpc *RPCError
	if !errors.As(err, &rpc) || rpc.Code != codeUnsupportedVersion {
		return false
	}
	var e struct {
		Data struct {
			Supported []string `json:"supported"`
		} `json:"data"`
	}
	return json.Unmarshal(rpc.Raw, &e) == nil && slices.Contains(e.Data.Supported, Stateless)
}

// stamp puts into a request's _meta what this revision wants in each. What the
// params say of it already is replaced.
func (c *Client) stamp(params, capabilities []byte) ([]byte, error) {
	if len(capabilities) == 0 {
		capabilities = c.opts.Capabilities
	}
	info, err := json.Marshal(map[string]string{"name": c.opts.Name, "version": c.opts.Version})
	if err != nil {
		return nil, err
	}
	meta := fmt.Appendf(nil, `{%q:%q,%q:%s,%q:%s`, metaVersion, Stateless, metaClient, info, metaCapabilities, capabilities)
	c.mu.Lock()
	if c.level != "" {
		meta = fmt.Appendf(meta, `,%q:%q`, metaLevel, c.level)
	}
	c.mu.Unlock()
	out := []byte(`{"_meta":`)
	rest := []byte{}
	if len(params) > 0 {
		err = relay.Members(params, func(k string, v relay.Span) bool {
			if k != "_meta" {
				rest = member(rest, k, v.Of(params))
				return true
			}
			// A _meta that is no object says nothing.
			_ = relay.Members(v.Of(params), func(name string, mv relay.Span) bool {
				switch name {
				case metaVersion, metaClient, metaCapabilities, metaLevel:
				default:
					meta = member(meta, name, mv.Of(v.Of(params)))
				}
				return true
			})
			return true
		})
	}
	out = append(append(out, meta...), '}')
	return append(append(out, rest...), '}'), err
}

// member appends ,"name":value.
func member(object []byte, name string, value []byte) []byte {
	k, err := json.Marshal(name)
	if err != nil { // a string always marshals
		return object
	}
	object = append(append(object, ','), k...)
	return append(append(object, ':'), value...)
}
