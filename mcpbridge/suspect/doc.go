// Package suspect looks for text in a server's definitions that seems written
// for a model rather than for a reader: instructions, secrecy, hidden
// characters. It reports and never decides: who writes with care is not found
// by it. It may import nothing of the bridge's and read nothing but its input.
package suspect
