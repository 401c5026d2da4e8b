package streamhttp

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// status maps the errors that this revision gives an HTTP status.
func status(m relay.Message, raw []byte) int {
	if m.Error.End == 0 {
		return http.StatusOK
	}
	var e struct{ Code int }
	if json.Unmarshal(m.Error.Of(raw), &e) != nil {
		return http.StatusOK
	}
	switch e.Code {
	case -32601:
		return http.StatusNotFound
	case -32602, codeMissingCapability, codeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// checkHeaders compares the headers that intermediaries route by with the
// body. It returns the error's code, or 0.
func checkHeaders(r *http.Request, m relay.Message, raw []byte) (int, string) {
	params := m.Params.Of(raw)
	v := metaVersionOf(m, raw)
	switch h := r.Header.Get(versionHeader); {
	case v == "":
		return -32602, "params._meta lacks " + metaVersion
	case h != v:
		return codeHeaderMismatch, "the header Mcp-Protocol-Version is not the version in params._meta"
	case r.Header.Get("Mcp-Method") != m.Method:
		return codeHeaderMismatch, "the header Mcp-Method is not the request's method"
	}
	member, ok := map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}[m.Method]
	if !ok {
		return 0, ""
	}
	span, _ := relay.Member(params, member)
	var want string
	if json.Unmarshal(span.Of(params), &want) != nil {
		return 0, "" // for the server to refuse
	}
	got := r.Header.Get("Mcp-Name")
	if b, ok := strings.CutPrefix(got, "=?base64?"); ok {
		if d, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(b, "?=")); err == nil {
			got = string(d)
		}
	}
	if got != want {
		return codeHeaderMismatch, "the header Mcp-Name is not the request's " + member
	}
	return 0, ""
}

// metaVersionOf is the version that a request claims for itself, or empty.
func metaVersionOf(m relay.Message, raw []byte) string {
	params := m.Params.Of(raw)
	meta, ok := relay.Member(params, "_meta")
	if !ok {
		return ""
	}
	span, ok := relay.Member(meta.Of(params), metaVersion)
	var v string
	if !ok || json.Unmarshal(span.Of(meta.Of(params)), &v) != nil {
		return ""
	}
	return v
}

// unsupported names the versions that a client may use instead.
func unsupported(w http.ResponseWriter, id []byte, requested string, supported []string) {
	data, err := json.Marshal(map[string]any{"supported": supported, "requested": relay.Cut([]byte(requested), 40)})
	if err != nil || id == nil {
		id = []byte("null")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"unsupported protocol version","data":%s}}`, id, codeUnsupportedVersion, data)
}
