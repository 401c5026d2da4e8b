package mcpbridge

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxSlug leaves room for a tool's name in 64 characters.
const maxSlug = 40

// maxToolName is what model APIs take as a tool's name.
const maxToolName = 64

// Slug makes a snake_case name: ASCII letters lower-cased, digits kept, every
// run of anything else one underscore. A slug over 40 characters is cut and
// ends with a hash of the name. It is empty if nothing is left.
func Slug(name string) string {
	var b strings.Builder
	gap := false
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte('_')
			gap = false
		}
		b.WriteRune(r)
	}
	return shorten(b.String(), name, maxSlug)
}

// shorten cuts s to n bytes, the last nine of them a hash of full, so that a
// name is shortened the same way at each start.
func shorten(s, full string, n int) string {
	if len(s) <= n {
		return s
	}
	sum := sha256.Sum256([]byte(full))
	return strings.TrimRight(s[:n-9], "_") + "_" + hex.EncodeToString(sum[:4])
}

// AggregateName is the name of a server's tool at the aggregated endpoint:
// mcp_{server}_{tool}, shortened stably to 64 characters.
func AggregateName(slug, tool string) string {
	full := "mcp_" + slug + "_" + tool
	return shorten(full, slug+"\x00"+tool, maxToolName)
}

// PublishedName is the name of a published workflow's tool: the prefix and the
// id, whose every character beside A-Z a-z 0-9 _ - becomes an underscore,
// shortened stably to 64 characters.
func PublishedName(prefix, id string) string {
	plain := strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return '_'
		}
		return r
	}, id)
	return shorten(prefix+plain, prefix+"\x00"+id, maxToolName)
}

// ownsName says whether the server with this slug may use that aggregate
// name: a longer slug that fits the name too owns it, whether or not that
// server runs now, so that no server can ever stand in for another.
func ownsName(name, slug string, slugs []string) bool {
	for _, s := range slugs {
		if len(s) > len(slug) && strings.HasPrefix(name, "mcp_"+s+"_") {
			return false
		}
	}
	return true
}

// toolNameOK admits the characters of the specification (2025-11-25, Tool
// Names) and the slash of its drafts: ASCII only, so that neither control
// characters nor look-alikes get in.
func toolNameOK(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-./", rune(c)) {
			return false
		}
	}
	return true
}
