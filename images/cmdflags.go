package images

import (
	"regexp"
	"slices"
	"strings"
)

var envNameRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

// flagSet reads the flags of one launcher that come before the first word that
// is none, in the forms --name VALUE, --name=VALUE, -n VALUE, -nVALUE and -abc.
type flagSet struct {
	program string
	// plain take no value, valued take one: names with their dashes. Those that
	// are ignored change nothing in a sandbox.
	plain, valued, ignored, ignoredValued []string
	// take is told of each that is not ignored; its error refuses the line.
	take func(name, value string) error
	// refuse says why another flag is not taken, and what to do.
	refuse func(name string) (why, next string)
}

// parse returns the words after the flags.
func (f *flagSet) parse(words []string) ([]string, error) {
	for len(words) > 0 {
		w := words[0]
		switch {
		case w == "--":
			return words[1:], nil
		case !strings.HasPrefix(w, "-") || w == "-":
			return words, nil
		}
		n, err := f.word(words)
		if err != nil {
			return nil, err
		}
		words = words[n:]
	}
	return nil, nil
}

// word takes the flags in one word, and says how many words that took.
func (f *flagSet) word(words []string) (int, error) {
	w := words[0]
	if !strings.HasPrefix(w, "--") {
		return f.short(words)
	}
	name, value, has := strings.Cut(w, "=")
	switch {
	case slices.Contains(f.valued, name), slices.Contains(f.ignoredValued, name):
		return f.value(name, value, has, words)
	case slices.Contains(f.plain, name), slices.Contains(f.ignored, name):
		return 1, f.bool(name, value, has)
	}
	return 0, f.unknown(name)
}

// short takes -abc, -n VALUE and -nVALUE. A single dash before a whole name is
// one of those launchers' too.
func (f *flagSet) short(words []string) (int, error) {
	letters := words[0][1:]
	for i, c := range letters {
		name := "-" + string(c)
		rest := letters[i+len(string(c)):]
		switch {
		case slices.Contains(f.valued, name), slices.Contains(f.ignoredValued, name):
			return f.value(name, strings.TrimPrefix(rest, "="), rest != "", words)
		case slices.Contains(f.plain, name), slices.Contains(f.ignored, name):
			if v, has := strings.CutPrefix(rest, "="); has {
				return 1, f.bool(name, v, true)
			}
			if err := f.bool(name, "", false); err != nil {
				return 0, err
			}
		default:
			return 0, f.unknown(name)
		}
	}
	return 1, nil
}

func (f *flagSet) bool(name, value string, has bool) error {
	switch {
	case has && value == "false":
		return nil
	case has && value != "true":
		return fail(ErrReference, f.program+": the flag "+quoted(name)+" takes no value", "leave the value out")
	case slices.Contains(f.ignored, name):
		return nil
	}
	return f.take(name, "")
}

func (f *flagSet) value(name, value string, has bool, words []string) (int, error) {
	n := 1
	if !has {
		if len(words) < 2 {
			return 0, fail(ErrReference, f.program+": the flag "+name+" needs a value", commandForms)
		}
		value, n = words[1], 2
	}
	if slices.Contains(f.ignoredValued, name) {
		return n, nil
	}
	return n, f.take(name, value)
}

func (f *flagSet) unknown(name string) error {
	why, next := f.refuse(name)
	if why == "" {
		why = "its meaning could not be kept"
	}
	if next == "" {
		next = "leave it out"
	}
	return fail(ErrReference, f.program+": the flag "+quoted(name)+" is not taken: "+why, next)
}
