// Command gen derives spans.txt from a copy of the public suffix list: every
// name above a private suffix and below the registry's.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

func main() {
	out := flag.String("out", "spans.txt", "file to write")
	flag.Parse()
	if err := run(flag.Arg(0), *out); err != nil {
		fmt.Fprintln(os.Stderr, "shared/gen:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	f, err := os.Open(in)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	private := false
	var names []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		switch {
		case strings.Contains(line, "===BEGIN PRIVATE DOMAINS==="):
			private = true
		case !private || line == "" || strings.HasPrefix(line, "//") || strings.HasPrefix(line, "!"):
		default:
			above, err := ancestors(strings.TrimPrefix(line, "*."))
			if err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			names = append(names, above...)
		}
	}
	if err := sc.Err(); err != nil {
		return err
	}
	if !private || len(names) == 0 {
		return fmt.Errorf("%s has no private section", in)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return os.WriteFile(out, []byte("\n"+strings.Join(names, "\n")+"\n"), 0o644)
}

// ancestors lists the names above a suffix that are no suffixes themselves.
func ancestors(suffix string) ([]string, error) {
	ascii, err := idna.ToASCII(suffix)
	if err != nil {
		return nil, err
	}
	var above []string
	for {
		_, rest, ok := strings.Cut(ascii, ".")
		if !ok || !strings.Contains(rest, ".") {
			return above, nil
		}
		ascii = rest
		if s, _ := publicsuffix.PublicSuffix(rest); s != rest {
			above = append(above, rest)
		}
	}
}
