//go:build !verbs

package indextest

// devices are none in a binary without the provider.
func devices() []Variant { return nil }
