package clients

import (
	"fmt"
	"regexp"
	"strings"
)

// maxDiff bounds the lines that are compared with each other.
const maxDiff = 2000

var jsonPair = regexp.MustCompile(`"([^"\\]*)"\s*:\s*"((?:[^"\\]|\\.)*)"`)

// Diff shows which lines two texts differ in, without their surroundings and
// with what may be a secret in them hidden: it is printed.
func Diff(name string, old, now []byte) string {
	a, b := strings.SplitAfter(string(old), "\n"), strings.SplitAfter(string(now), "\n")
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	for len(a) > start && len(b) > start && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	a, b = a[start:], b[start:]
	if len(a)+len(b) == 0 {
		return ""
	}
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n@@ line %d @@\n", name, name, start+1)
	line := func(sign, s string) {
		if s != "" {
			fmt.Fprintf(&out, "%s%s\n", sign, hidden(strings.TrimRight(s, "\r\n")))
		}
	}
	if len(a) > maxDiff || len(b) > maxDiff {
		fmt.Fprintf(&out, "%d lines become %d\n", len(a), len(b))
		return out.String()
	}
	// The longest common subsequence, from the end.
	n := make([][]int, len(a)+1)
	for i := range n {
		n[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				n[i][j] = n[i+1][j+1] + 1
			} else {
				n[i][j] = max(n[i+1][j], n[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && n[i+1][j] >= n[i][j+1]:
			line("-", a[i])
			i++
		default:
			line("+", b[j])
			j++
		}
	}
	return out.String()
}

// hidden replaces values that may be secrets.
func hidden(line string) string {
	line = jsonPair.ReplaceAllStringFunc(line, func(m string) string {
		p := jsonPair.FindStringSubmatch(m)
		if maySecret(p[1], p[2]) {
			return `"` + p[1] + `": "[secret]"`
		}
		return m
	})
	words := strings.Split(line, `"`)
	for i := 1; i < len(words); i += 2 {
		if looksSecret(words[i]) {
			words[i] = "[secret]"
		}
	}
	return strings.Join(words, `"`)
}
