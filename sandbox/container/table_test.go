//go:build linux

package container

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// table is what came of attacks, for people: one row each, and a column for
// the weakened sandbox and for each tier.
type table struct {
	mu    sync.Mutex
	names []string
	cells map[string]string // by name and column
	how   []string
}

// newTable has the test's end print the table.
func newTable(t *testing.T) *table {
	tb := &table{cells: map[string]string{}}
	t.Cleanup(func() { t.Log("\n" + tb.String()) })
	return tb
}

func (tb *table) add(name, column string, worked bool, how string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if tb.cells[name] == "" {
		tb.cells[name] = name
		tb.names = append(tb.names, name)
	}
	cell := "held"
	if worked {
		cell = "worked"
	} else if column == "weakened" {
		cell = "not on this host"
	}
	tb.cells[name+"\x00"+column] = cell
	tb.how = append(tb.how, fmt.Sprintf("%s, %s: %s: %.160s", name, column, cell, strings.Join(strings.Fields(how), " ")))
}

// String is the table in Markdown, and below it how each attack went.
func (tb *table) String() string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	columns := []string{"weakened", "container", "gvisor"}
	var b strings.Builder
	fmt.Fprintf(&b, "| attack | %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)+1))
	held := map[string]int{}
	for _, name := range tb.names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, c := range columns {
			cell := tb.cells[name+"\x00"+c]
			held[c+cell]++
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%d attacks; weakened: %d worked; container: %d worked; gvisor: %d worked\n\n",
		len(tb.names), held["weakenedworked"], held["containerworked"], held["gvisorworked"])
	b.WriteString(strings.Join(tb.how, "\n"))
	return b.String()
}
