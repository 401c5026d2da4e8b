// Command gen turns the registry files of a folder into table.go. It reads
// files only: fetching new ones is somebody else's job.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"flag"
	"fmt"
	"go/format"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

func main() {
	dir := flag.String("dir", ".", "folder with the CSV files")
	out := flag.String("out", "table.go", "file to write")
	flag.Parse()
	src, err := generate(*dir)
	if err == nil {
		err = os.WriteFile(*out, src, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "iana/gen:", err)
		os.Exit(1)
	}
}

type block struct {
	prefix netip.Prefix
	class  string
}

func generate(dir string) ([]byte, error) {
	classes, err := readClasses(filepath.Join(dir, "classes.csv"))
	if err != nil {
		return nil, err
	}
	registered, err := readRegistries(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range registered {
		if classes[p] == "" {
			return nil, fmt.Errorf("registry row %s has no class: add it to classes.csv", p)
		}
	}
	meta, err := readColumn(filepath.Join(dir, "metadata.csv"), "Address")
	if err != nil {
		return nil, err
	}
	return render(classes, meta)
}

// readClasses reads which class each block has.
func readClasses(name string) (map[netip.Prefix]string, error) {
	rows, err := readRows(name, "Address Block", "Class")
	if err != nil {
		return nil, err
	}
	classes := make(map[netip.Prefix]string, len(rows))
	for _, r := range rows {
		p, err := netip.ParsePrefix(r[0])
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%s: %q is not a canonical prefix", name, r[0])
		}
		if classes[p] != "" {
			return nil, fmt.Errorf("%s: %s twice", name, p)
		}
		classes[p] = r[1]
	}
	return classes, nil
}

// readRegistries lists the blocks that must have a class: every special row,
// and the parts of the IPv6 space that are not simply reserved.
func readRegistries(dir string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, f := range []struct{ file, column string }{
		{"iana-ipv4-special-registry-1.csv", "Address Block"},
		{"iana-ipv6-special-registry-1.csv", "Address Block"},
	} {
		cells, err := readColumn(filepath.Join(dir, f.file), f.column)
		if err != nil {
			return nil, err
		}
		for _, cell := range cells {
			for _, one := range strings.Split(cell, ",") {
				// IANA appends footnote marks such as " [2]".
				one, _, _ = strings.Cut(strings.TrimSpace(one), " ")
				p, err := netip.ParsePrefix(one)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", f.file, err)
				}
				all = append(all, p.Masked())
			}
		}
	}
	space := filepath.Join(dir, "ipv6-address-space-1.csv")
	rows, err := readRows(space, "IPv6 Prefix", "Allocation")
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if r[1] == "Reserved by IETF" {
			continue // not assigned: outside 2000::/3 unless classes.csv says more
		}
		p, err := netip.ParsePrefix(r[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", space, err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

func readColumn(name, column string) ([]string, error) {
	rows, err := readRows(name, column)
	if err != nil {
		return nil, err
	}
	cells := make([]string, len(rows))
	for i, r := range rows {
		cells[i] = r[0]
	}
	return cells, nil
}

// readRows reads the named columns of a CSV file with a header line.
func readRows(name string, columns ...string) ([][]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(all) < 2 {
		return nil, fmt.Errorf("%s: no rows", name)
	}
	index := make([]int, len(columns))
	for i, c := range columns {
		if index[i] = slices.Index(all[0], c); index[i] < 0 {
			return nil, fmt.Errorf("%s: no column %q", name, c)
		}
	}
	var rows [][]string
	for _, line := range all[1:] {
		row := make([]string, len(columns))
		for i, k := range index {
			row[i] = strings.TrimSpace(line[k])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// ident turns "v4.link-local" into V4LinkLocal.
func ident(class string) string {
	var b strings.Builder
	for _, part := range strings.FieldsFunc(class, func(r rune) bool { return r == '.' || r == '-' }) {
		if s := b.String(); s != "" && part[0] >= '0' && part[0] <= '9' && s[len(s)-1] >= '0' && s[len(s)-1] <= '9' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

func render(classes map[netip.Prefix]string, meta []string) ([]byte, error) {
	var blocks []block
	names := map[string]bool{"v4.public": true, "v6.public": true, "v6.isatap": true, "v6.outside-2000-3": true}
	for p, c := range classes {
		blocks = append(blocks, block{p, c})
		names[c] = true
	}
	slices.SortFunc(blocks, func(a, b block) int { // the longest first
		if d := b.prefix.Bits() - a.prefix.Bits(); d != 0 {
			return d
		}
		return a.prefix.Addr().Compare(b.prefix.Addr())
	})
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	sort.Strings(sorted)

	var w bytes.Buffer
	fmt.Fprint(&w, "// Code generated by iana/gen from the CSV files of this folder; DO NOT EDIT.\n\npackage iana\n\nimport \"net/netip\"\n\n// The classes, named as classes.csv names them.\nconst (\n")
	for i, n := range sorted {
		fmt.Fprintf(&w, "%s Class = %d // %s\n", ident(n), i+1, n)
	}
	fmt.Fprintf(&w, ")\n\nvar classNames = [...]string{\n")
	for _, n := range sorted {
		fmt.Fprintf(&w, "%s: %q,\n", ident(n), n)
	}
	fmt.Fprint(&w, "}\n\nvar table4 = [...]entry4{\n")
	for _, b := range blocks {
		if b.prefix.Addr().Is4() {
			base := b.prefix.Addr().As4()
			fmt.Fprintf(&w, "{%#08x, %#08x, %s}, // %s\n", binary.BigEndian.Uint32(base[:]), uint32(mask(b.prefix.Bits(), 32)), ident(b.class), b.prefix)
		}
	}
	fmt.Fprint(&w, "}\n\nvar table6 = [...]entry6{\n")
	for _, b := range blocks {
		if b.prefix.Addr().Is6() {
			base := b.prefix.Addr().As16()
			bits := b.prefix.Bits()
			fmt.Fprintf(&w, "{%#x, %#x, %#x, %#x, %s}, // %s\n", binary.BigEndian.Uint64(base[:8]), binary.BigEndian.Uint64(base[8:]),
				mask(min(bits, 64), 64), mask(max(bits-64, 0), 64), ident(b.class), b.prefix)
		}
	}
	fmt.Fprint(&w, "}\n\nvar metadata = [...]netip.Addr{\n")
	for _, m := range meta {
		a, err := netip.ParseAddr(m)
		if err != nil {
			return nil, fmt.Errorf("metadata.csv: %w", err)
		}
		if a.Is4() {
			b := a.As4()
			fmt.Fprintf(&w, "netip.AddrFrom4([4]byte{%d, %d, %d, %d}), // %s\n", b[0], b[1], b[2], b[3], a)
			continue
		}
		b := a.As16()
		fmt.Fprintf(&w, "netip.AddrFrom16([16]byte{%s}), // %s\n", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(b)), ", "), "[]"), a)
	}
	fmt.Fprint(&w, "}\n")
	return format.Source(w.Bytes())
}

// mask is the top bits of width set, in the low width bits of the result.
func mask(bits, width int) uint64 {
	if bits == 0 {
		return 0
	}
	return ^uint64(0) >> (64 - width) &^ (1<<(width-bits) - 1)
}
