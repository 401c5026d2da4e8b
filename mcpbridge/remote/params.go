package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// The revision 2026-07-28 has some arguments of tools repeated in headers, as
// the tools' schemas ask for it (x-mcp-header).

const (
	paramPrefix        = "Mcp-Param-"
	codeHeaderMismatch = -32020
	maxParamTools      = 10_000
	maxParams          = 32 // of one tool
	maxParamDepth      = 16
	maxParamPages      = 50
)

// param is one argument that is repeated.
type param struct {
	path   []string
	header string
}

// params are those of the tools that were listed.
type params struct {
	mu    sync.Mutex
	tools map[string][]param
}

type paramSchema struct {
	Header     json.RawMessage        `json:"x-mcp-header"`
	Properties map[string]paramSchema `json:"properties"`
}

// learn takes the answer to tools/list. It returns the next page's cursor.
func (p *params) learn(answer []byte) (cursor string) {
	marked := bytes.Contains(answer, []byte("x-mcp-header"))
	if !marked && !bytes.Contains(answer, []byte("nextCursor")) {
		return ""
	}
	var res struct {
		Result struct {
			Tools []struct {
				Name        string          `json:"name"`
				InputSchema json.RawMessage `json:"inputSchema"`
			} `json:"tools"`
			NextCursor string `json:"nextCursor"`
		} `json:"result"`
	}
	if json.Unmarshal(answer, &res) != nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range res.Result.Tools {
		var s paramSchema
		if json.Unmarshal(t.InputSchema, &s) != nil {
			continue
		}
		found := s.collect(nil, nil)
		switch {
		case len(found) == 0:
			delete(p.tools, t.Name)
		case len(p.tools) < maxParamTools:
			if p.tools == nil {
				p.tools = map[string][]param{}
			}
			p.tools[t.Name] = found
		}
	}
	return res.Result.NextCursor
}

func (s paramSchema) collect(path []string, out []param) []param {
	if len(path) >= maxParamDepth {
		return out
	}
	for name, prop := range s.Properties {
		at := append(path[:len(path):len(path)], name)
		var header string
		if json.Unmarshal(prop.Header, &header) == nil && isToken(header) && len(out) < maxParams {
			out = append(out, param{at, header})
		}
		out = prop.collect(at, out)
	}
	return out
}

// isToken says whether s can be part of a field's name (RFC 9110, 5.6.2).
func isToken(s string) bool {
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// set puts the headers of one call.
func (p *params) set(h http.Header, tool string, callParams []byte) {
	p.mu.Lock()
	list := p.tools[tool]
	p.mu.Unlock()
	for _, x := range list {
		at, ok := relay.Member(callParams, "arguments")
		value := at.Of(callParams)
		for _, name := range x.path {
			if !ok {
				break
			}
			at, ok = relay.Member(value, name)
			value = at.Of(value)
		}
		if text, good := primitive(value); ok && good {
			h.Set(paramPrefix+x.header, headerValue(text))
		}
	}
}

// primitive writes a string, a boolean or a whole number as headers have it.
func primitive(raw []byte) (string, bool) {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, len(v) <= 8<<10
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		return strconv.FormatInt(int64(v), 10), v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return "", false
}

// mismatch says whether a server refused a call for want of headers.
func mismatch(m relay.Message, res *http.Response, body []byte) bool {
	if m.Method != "tools/call" || res.StatusCode != http.StatusBadRequest {
		return false
	}
	var e struct {
		Error struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	return json.Unmarshal(body, &e) == nil && e.Error.Code == codeHeaderMismatch
}

// learnParams lists the tools, for a call that came before its client had
// listed them in this session.
func (s *Server) learnParams(ctx context.Context, m relay.Message, line []byte) {
	meta, ok := relay.Member(m.Params.Of(line), "_meta")
	if !ok {
		return
	}
	cursor := ""
	for range maxParamPages {
		ask := append([]byte(`{"jsonrpc":"2.0","id":"sandboxd-params","method":"tools/list","params":{"_meta":`), meta.Of(m.Params.Of(line))...)
		if cursor != "" {
			c, err := json.Marshal(cursor)
			if err != nil {
				return
			}
			ask = append(append(ask, `,"cursor":`...), c...)
		}
		ask = append(ask, "}}"...)
		pm, err := relay.Peek(ask)
		if err != nil {
			return
		}
		res, err := s.post(ctx, pm, ask)
		if err != nil {
			return
		}
		answer := s.only(res, pm.ID.Of(ask))
		_ = res.Body.Close()
		if next := s.params.learn(answer); next != "" && next != cursor {
			cursor = next
			continue
		}
		return
	}
}

// only is the answer to a request of our own, or nil.
func (s *Server) only(res *http.Response, id []byte) []byte {
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "text/event-stream" {
		ev := newEvents(res.Body, s.cfg.MaxMessage)
		for {
			data, err := ev.next()
			if err != nil || answers(data, id) {
				return data
			}
		}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(s.cfg.MaxMessage)))
	if err != nil || !answers(body, id) {
		return nil
	}
	return body
}
