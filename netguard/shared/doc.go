// Package shared says under which names strangers can register: public
// suffixes, and names such as amazonaws.com that have one somewhere below.
//
// Suffixes themselves come from golang.org/x/net/publicsuffix; spans.txt,
// generated from the list's text, adds the names above private suffixes. This
// package may never do I/O or keep state.
package shared

//go:generate go run ./gen -out spans.txt /usr/share/publicsuffix/public_suffix_list.dat
