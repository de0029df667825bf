//go:build planted

package tpcc

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlanted: each of these bugs makes the named test fail for the reason given.
func TestPlanted(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.SkipCommitValidation, Test: "TestConservation/clients killed", Want: `w_ytd of warehouse . grew by|3\.3\.2\.[0-9]+: `},
		{Bug: planted.ForgetOutcomes, Test: "TestConservation/all at once", Want: `in history \[.*\} \{`},
	})
}
