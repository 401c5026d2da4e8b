// Package strict reads configuration documents so that a mistake is an error
// with a line and a column: it turns a file into a bounded tree of nodes with
// their places (Node), and helps to take typed values out of the tree while
// it collects every fault, not just the first (Reporter, Map).
//
// It knows no key of any document. It may never read a file, and it never
// puts a value into a message by itself: a value may be a secret.
package strict
