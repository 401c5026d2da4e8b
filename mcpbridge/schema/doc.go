// Package schema compiles the JSON Schemas that strangers write and validates
// values against them in bounded time and memory.
//
// jsonschema-go gives the verdict; this package keeps a schema away from it
// that would make it work without end (a reference to itself, references that
// double at every level) and turns its error into one that names the place in
// the value.
//
// It may never load a schema from anywhere but the bytes it was given.
package schema
