//! From a node and its inputs' trees to its recipe.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::digest::TreeId;
use crate::graph::{InputSpec, NodeSpec, Ref};
use crate::kinds::{Action, Input, InputFiles, Params, StepError};
use crate::model::recipe::{Ingredients, Recipe};
use crate::model::run::Isolation;
use crate::model::tree::Tree;
use crate::plan::machine::{Machine, Outcome, State};
use crate::store::{Store, StoreError};

/// A node whose inputs are known.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) recipe: Recipe,
    pub(super) ingredients: Ingredients,
    pub(super) inputs: BTreeMap<String, Input>,
    pub(super) action: Action,
    pub(super) at_least: Isolation,
}

enum PrepareError {
    Store(StoreError),
    Step(String, Option<String>),
}

impl From<StoreError> for PrepareError {
    fn from(e: StoreError) -> Self {
        PrepareError::Store(e)
    }
}

/// A step's error and what to do.
pub(super) fn step_error(e: StepError) -> (String, Option<String>) {
    let hint = match &e {
        StepError::Invalid { hint, .. } => hint.clone(),
        _ => None,
    };
    (e.to_string(), hint)
}

impl From<StepError> for PrepareError {
    fn from(e: StepError) -> Self {
        let (error, hint) = step_error(e);
        PrepareError::Step(error, hint)
    }
}

// Assertions stay out: they can't change the output.
fn hashed_params(spec: &NodeSpec) -> Params {
    let asserted: Vec<&str> = spec.kind.keys().iter().filter(|k| !k.hashed).map(|k| k.name).collect();
    spec.params.iter().filter(|(k, _)| !asserted.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

impl Machine<'_> {
    // Makes the recipe for these input trees, unless it is there. False where that failed, which is then the node's state.
    pub(super) fn prepare_or_fail(&mut self, id: usize, trees: Vec<TreeId>) -> Outcome<bool> {
        if self.nodes[id].prepared_for.as_ref() == Some(&trees) {
            return Ok(true);
        }
        let prepared = match self.prepare(id, &trees) {
            Ok(p) => p,
            Err(PrepareError::Store(e)) => return Err(e),
            Err(PrepareError::Step(e, hint)) => {
                self.enter(id, State::Failed { error: e, hint });
                return Ok(false);
            }
        };
        let node = &mut self.nodes[id];
        node.prepared = Some(prepared);
        node.known = None;
        node.prepared_for = Some(trees);
        Ok(true)
    }

    fn prepare(&mut self, id: usize, trees: &[TreeId]) -> Result<Prepared, PrepareError> {
        let spec = self.nodes[id].spec.clone();
        let mut inputs = BTreeMap::new();
        let mut ingredients = Ingredients {
            kind: spec.kind.name().to_owned(),
            revision: spec.kind.revision(),
            platform: spec.platform.clone(),
            params: hashed_params(&spec),
            ..Ingredients::default()
        };
        for ((alias, input), whole) in spec.inputs.iter().zip(trees) {
            let (tree_id, tree) = self.input_tree(alias, input, *whole)?;
            let single_file = match &input.from {
                Ref::Source(s) => self.setting.graph.source(s.as_str()).is_some_and(|s| !s.kind.is_folder()),
                Ref::Node(_) => false,
            };
            ingredients.inputs.insert(alias.clone(), tree_id);
            if let Some(at) = &input.at {
                ingredients.at.insert(alias.clone(), at.clone());
            }
            let files: Arc<dyn InputFiles> = Arc::<Store>::clone(&self.setting.store);
            let input = Input { alias: alias.clone(), tree, files, single_file, at: input.at.clone() };
            inputs.insert(alias.clone(), input);
        }
        let action = spec.kind.action(&spec.params, &inputs)?;
        let at_least = match &action {
            Action::Builtin => Isolation::Builtin,
            Action::Process(p) if p.container.is_some() => {
                let image = p.container.as_ref().map(|c| self.setting.tools.image(&c.image));
                ingredients.image = image.transpose()?;
                Isolation::Container
            }
            Action::Process(p) => {
                ingredients.tools = self.setting.tools.resolve(p, &inputs)?;
                if self.setting.unsandboxed { Isolation::None } else { Isolation::Namespaces }
            }
        };
        Ok(Prepared { recipe: ingredients.recipe(), ingredients, inputs, action, at_least })
    }

    fn input_tree(
        &mut self,
        alias: &str,
        input: &InputSpec,
        whole: TreeId,
    ) -> Result<(TreeId, Arc<Tree>), PrepareError> {
        let Some(uses) = &input.uses else { return Ok((whole, self.tree(whole)?)) };
        let key = (whole, uses.clone());
        if let Some(found) = self.filtered.get(&key) {
            return Ok(found.clone());
        }
        let tree = self.tree(whole)?;
        let Some(filter) = input.filter() else { return Ok((whole, tree)) };
        let kept = filter
            .apply(&tree)
            .map_err(|e| PrepareError::Step(format!("inputs.{alias}: {e} in {}", input.from.name()), Some(e.hint())))?;
        // Kept, so that `why` can say which of its files changed.
        let id = self.setting.store.put_tree(&kept)?;
        let found = (id, Arc::new(kept));
        self.filtered.insert(key, found.clone());
        Ok(found)
    }

    fn tree(&mut self, id: TreeId) -> Outcome<Arc<Tree>> {
        if let Some(t) = self.trees.get(&id) {
            return Ok(Arc::clone(t));
        }
        let tree = self.setting.store.tree(id)?.ok_or_else(|| StoreError::Damaged {
            path: self.setting.store.dir().join("trees"),
            what: format!("lacks the listing of {id}, which a run names"),
        })?;
        let tree = Arc::new(tree);
        self.trees.insert(id, Arc::clone(&tree));
        Ok(tree)
    }
}
