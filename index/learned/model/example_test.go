package model_test

import (
	"fmt"

	"drtmx/index/learned/model"
)

// A server trains and publishes; a client that keeps no translation table reads
// the part it needs.
func Example() {
	fences := []uint64{0, 100, 210, 290, 400, 500, 610, 700}
	router, _ := model.NewRouter(model.Partition(fences, 512))

	trainer, _ := model.NewTrainer(model.Options{Family: model.PLR})
	trainer.Begin(router.Start(0))
	for i, low := range fences {
		trainer.Add(low, uint32(40+i), []uint64{low, low + 50})
	}
	var trained model.SubModel
	quality, _ := trainer.Train(&trained, 1)
	block := trained.AppendTo(nil)
	fmt.Println("wrong first leaves:", quality.FirstLeafWrong)

	var held model.SubModel
	_ = held.DecodeHead(block)
	p := held.Predict(450) // router.Route(450) is 0: there is one sub-model
	if p.Knows == model.KnowsLeaf {
		offset, words := held.TTWindow(p.Lo, p.Hi)
		p, _ = held.Resolve(450, p, block[offset:offset+words]) // one small READ
	}
	fmt.Println("leaf:", p.Leaf, "ALN:", p.ALN)
	// Output:
	// wrong first leaves: 0
	// leaf: 4 ALN: 44
}
