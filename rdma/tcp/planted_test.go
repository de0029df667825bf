//go:build planted

package tcp

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlanted: each of these bugs makes the named test fail for the reason given.
func TestPlanted(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.AnyCapability, Test: "TestVerbsOutsideAGrant", Want: "of another connection: <nil>, status 1"},
		{Bug: planted.IgnoreRight, Test: "TestReaderCannotWrite", Want: "reader: WRITE has status 1 and changed memory: true"},
		{Bug: planted.IgnoreRight, Test: "FuzzAgent", Want: "without a grant to write changed"},
	})
}
