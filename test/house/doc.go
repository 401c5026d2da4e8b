// Package house holds no code: its tests keep the architecture, that is which
// folder may import what.
package house
