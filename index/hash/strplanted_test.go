//go:build planted

package hash_test

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlantedInStrings: each of these bugs makes the named test fail for the reason given.
func TestPlantedInStrings(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.NoKeyCheck, Test: "TestTiedStrings", Want: "never inserted|another key's|want version"},
		{Bug: planted.KeepMovedRow, Test: "TestRowsMove", Want: "the block moved from has header"},
		{Bug: planted.KeepMovedRow, Test: "TestGrowingRowsBesideReaders", Want: "holds although the key was locked|is older than version|rests at version"},
		{Bug: planted.SlotBeforeRow, Test: "TestTiedStrings", Want: "always there and is reported absent|rests at version"},
		{Bug: planted.AbsenceUnconfirmed, Test: "TestAbsenceIsConfirmed", Want: "the key is there all the time"},
		{Bug: planted.LengthOfBlock, Test: "TestRowsMove", Want: "words"},
	})
}
