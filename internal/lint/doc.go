// Package lint holds the house rules that a compiler does not check, as tests:
// which package may import which, where unsafe may live, what no library may do,
// and which words its texts do not use. It has no code of its own to import.
package lint
