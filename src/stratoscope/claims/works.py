"""The works that measures are from, in full: once each, under the short form that `Measure.reference` gives."""

from __future__ import annotations

from collections.abc import Mapping

WORKS: Mapping[str, str] = {
    "Wu et al. 2020": "Wu, Belinkov, Sajjad, Durrani, Dalvi, Glass (2020). Similarity Analysis of Contextual Word "
    "Representation Models. ACL.",
    "Phang et al. 2021": "Phang, Liu, Bowman (2021). Fine-Tuned Transformers Show Clusters of Similar Representations "
    "Across Layers. BlackboxNLP.",
    "Ren et al. 2023": "Ren, Guo, Jin, Ravfogel, Sachan, Schölkopf, Cotterell (2023). All Roads Lead to Rome? "
    "Exploring the Invariance of Transformers' Representations. arXiv.",
    "Dinh et al. 2017": "Dinh, Sohl-Dickstein, Bengio (2017). Density Estimation Using Real NVP. ICLR.",
    "Durrani et al. 2021": "Durrani, Sajjad, Dalvi (2021). How Transfer Learning Impacts Linguistic Knowledge in Deep "
    "NLP Models? Findings of ACL.",
    "Dalvi et al. 2019": "Dalvi, Durrani, Sajjad, Belinkov, Bau, Glass (2019). What Is One Grain of Sand in the "
    "Desert? Analyzing Individual Neurons in Deep NLP Models. AAAI.",
    "Hewitt & Liang 2019": "Hewitt, Liang (2019). Designing and Interpreting Probes with Control Tasks. EMNLP.",
    "Voita & Titov 2020": "Voita, Titov (2020). Information-Theoretic Probing with Minimum Description Length. EMNLP.",
    "Kornblith et al. 2019": "Kornblith, Norouzi, Lee, Hinton (2019). Similarity of Neural Network Representations "
    "Revisited. ICML.",
    "Song et al. 2012": "Song, Smola, Gretton, Bedo, Borgwardt (2012). Feature Selection via Dependence Maximization. "
    "JMLR.",
    "Nguyen et al. 2021": "Nguyen, Raghu, Kornblith (2021). Do Wide and Deep Networks Learn the Same Things? ICLR.",
    "Raghu et al. 2017": "Raghu, Gilmer, Yosinski, Sohl-Dickstein (2017). SVCCA: Singular Vector Canonical Correlation "
    "Analysis for Deep Learning Dynamics and Interpretability. NeurIPS.",
    "Morcos et al. 2018": "Morcos, Raghu, Bengio (2018). Insights on Representational Similarity in Neural Networks "
    "with Canonical Correlation. NeurIPS.",
    "Bau et al. 2019": "Bau, Belinkov, Sajjad, Durrani, Dalvi, Glass (2019). Identifying and Controlling Important "
    "Neurons in Neural Machine Translation. ICLR.",
    "Schönemann 1966": "Schönemann (1966). A Generalized Solution of the Orthogonal Procrustes Problem. Psychometrika.",
    "Williams et al. 2021": "Williams, Kunz, Kornblith, Linderman (2021). Generalized Shape Metrics on Neural "
    "Representations. NeurIPS.",
    "Kriegeskorte et al. 2008": "Kriegeskorte, Mur, Bandettini (2008). Representational Similarity Analysis: "
    "Connecting the Branches of Systems Neuroscience. Frontiers in Systems Neuroscience.",
    "Huh et al. 2024": "Huh, Cheung, Wang, Isola (2024). The Platonic Representation Hypothesis. ICML.",
    "Klabunde et al. 2025": "Klabunde, Schumacher, Strohmaier, Lemmerich (2025). Similarity of Neural Network Models: "
    "A Survey of Functional and Representational Measures. ACM Computing Surveys.",
    "Men et al. 2024": "Men, Xu, Zhang, Wang, Lin, Lu, Han, Chen (2024). ShortGPT: Layers in Large Language Models are "
    "More Redundant Than You Expect. arXiv.",
    "Gromov et al. 2024": "Gromov, Tirumala, Shapourian, Glorioso, Roberts (2024). The Unreasonable Ineffectiveness of "
    "the Deeper Layers. arXiv.",
}


def works(reference: str) -> list[str]:
    """Short forms in a reference such as "Wu et al. 2020, A.3; Raghu et al. 2017", without where in them to look."""
    return [work.split(",")[0].strip() for work in reference.split(";")]
