// Package lint holds the house rules that a compiler does not check, as tests:
// which package may import which, where unsafe may live, and what no library
// may do. It has no code of its own to import.
package lint
